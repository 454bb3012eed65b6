"""The server is killed at every step of every operation; the next one loses nothing, and nothing leaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aenv.errors import HostNotReady, RuntimeFailure, SandboxLost
from aenv.network.base import Slot
from aenv.network.fake import FakeSlotPool
from aenv.node import Node
from aenv.sandboxes import recovery, service, store
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from aenv.telemetry.service import Telemetry
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings
from tests.unit.sandboxes.crash import Crash, Crashes, crash, side_by_side

NO_SPARES = {"hot_vms": 0, "bare_vms": 0}


async def _started(home: Path, **settings: object) -> Rig:
    node = Node(fake_settings(home, **{**NO_SPARES, **settings}))
    await node.start()
    return Rig(node, node._settings)


async def _rows(rig: Rig) -> dict[str, Sandbox]:
    """Every record, in whatever state."""
    found = await rig.node.captures._database.run(lambda c: store.in_states(c, set(State)))
    return {sandbox.id: sandbox for sandbox in found}


async def _check_nothing_leaks(rig: Rig) -> None:
    """What there is belongs to a record."""
    instances = {each.instance_id for each in (await _rows(rig)).values() if each.state is State.RUNNING}
    assert set(rig.runtime.instances) == instances
    assert {path.name for path in rig.settings.workspace_dir.iterdir()} == instances
    assert set(rig.network.in_use) == {each.place.slot.index for each in rig.runtime.instances.values()}
    named = await rig.node.captures._database.run(
        lambda c: {row[0] for row in c.execute("SELECT path FROM capture_layers")}
    )
    files = [path for path in rig.settings.captures_dir.rglob("*") if path.is_file()]
    assert {str(path.relative_to(rig.settings.home)) for path in files} <= named
    assert all(any(folder.iterdir()) for folder in rig.settings.captures_dir.iterdir())


async def _go_back(rig: Rig, running: str, _paused: str) -> None:
    snapshot = await rig.node.sandboxes.snapshot(running)
    await rig.node.sandboxes.roll_back(running, snapshot.snapshot_id)


OPERATIONS: dict[str, Callable[[Rig, str, str], Awaitable[object]]] = {
    "create": lambda rig, _running, _paused: rig.create(),
    "pause": lambda rig, running, _paused: rig.node.sandboxes.pause(running),
    "pause the disk": lambda rig, running, _paused: rig.node.sandboxes.pause(running, memory=False),
    "resume": lambda rig, _running, paused: rig.node.sandboxes.connect(paused, 60),
    "snapshot": lambda rig, running, _paused: rig.node.sandboxes.snapshot(running, "again"),
    "fork": lambda rig, running, _paused: rig.node.sandboxes.fork(running, 1),
    "rollback": _go_back,
    "kill": lambda rig, running, _paused: rig.node.sandboxes.kill(running),
    "kill a paused one": lambda rig, _running, paused: rig.node.sandboxes.kill(paused),
}

SLOW = dict.fromkeys(["pause the disk", "snapshot", "kill a paused one"], pytest.mark.long)
"""They take the same way as others, almost."""


@dataclass(frozen=True)
class Scene:
    """What there was before the crash."""

    rig: Rig
    running: str
    paused: str
    bystander: str
    snapshot: str

    @classmethod
    async def set(cls, home: Path, stopped_vms: int) -> Scene:
        """One sandbox that runs, one that is paused, one to which nothing is done, and a snapshot."""
        rig = await _started(home, stopped_vms=stopped_vms)
        running, paused, bystander = [(await rig.create()).id for _ in range(3)]
        await rig.put(running, "value", "in memory")
        await rig.put(running, "value", "on disk", "disk")
        await rig.put(paused, "value", "of the paused one")
        await rig.put(bystander, "value", "of the bystander")
        snapshot = await rig.node.sandboxes.snapshot(paused, "again")
        await rig.node.sandboxes.pause(paused)
        return cls(rig, running, paused, bystander, snapshot.id)

    async def crashes(self, operation: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Crash]:
        """Do the operation, with a crash after every step; the server that did it is stopped."""
        rig = self.rig
        with (
            monkeypatch.context() as patch,
            Crashes(rig.settings, rig.runtime, folder, patch.setattr) as crashes,
        ):
            await OPERATIONS[operation](rig, self.running, self.paused)
            await rig.node.sandboxes._core.tasks.drain()
        await rig.node.stop()
        return crashes.found

    async def check(self, after: Crash, operation: str) -> None:
        """The next server has everything, in a stable state, and nothing else."""
        rig = await after.restart()
        try:
            await _check_nothing_leaks(rig)
            rows = await _rows(rig)
            assert {each.state for each in rows.values()} <= {State.RUNNING, State.PAUSED}
            assert self.running in rows or operation == "kill"
            assert self.paused in rows or operation == "kill a paused one"
            assert rows[self.bystander].state is State.RUNNING
            assert await rig.read(self.bystander, "value") == "of the bystander"
            for sandbox_id in rows:
                await rig.node.sandboxes.connect(sandbox_id, 60)
            if self.running in rows:
                whole = rows[self.running].pause_mode == "full"
                assert await rig.read(self.running, "value") == ("in memory" if whole else None)
                assert await rig.read(self.running, "frozen") is not True
            if self.paused in rows:
                assert await rig.read(self.paused, "value") == "of the paused one"
            copy = await rig.create(template=self.snapshot)
            assert await rig.read(copy.id, "value") in {"of the paused one", "in memory"}
            await rig.node.sandboxes.pause(copy.id)
        except Exception as error:
            raise AssertionError(f"after a crash {after.where}") from error
        finally:
            await rig.node.stop()


@pytest.mark.parametrize("stopped_vms", [pytest.param(0, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("operation", [pytest.param(each, marks=SLOW.get(each, ())) for each in OPERATIONS])
async def test_a_crash_at_any_step_loses_and_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, stopped_vms: int
) -> None:
    scene = await Scene.set(tmp_path / "home", stopped_vms)
    crashes = await scene.crashes(operation, tmp_path, monkeypatch)
    assert len(crashes) > 2
    await side_by_side([scene.check(each, operation) for each in crashes])


@pytest.mark.parametrize("operation", ["pause", pytest.param("fork", marks=pytest.mark.long)])
async def test_a_crash_while_the_server_recovers_from_one_is_no_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    scene = await Scene.set(tmp_path / "home", 4)
    crashes = await scene.crashes(operation, tmp_path, monkeypatch)
    first = next(each for each in crashes if each.where.startswith("after capture"))
    await first.revive()
    with (
        monkeypatch.context() as patch,
        Crashes(first.settings, first.runtime, tmp_path / "again", patch.setattr) as again,
    ):
        rig = await first.restart()
    await rig.node.stop()
    assert len(again.found) > 5
    await side_by_side([scene.check(each, operation) for each in again.found])


async def _crashed(tmp_path: Path, **request: object) -> tuple[Crash, Sandbox]:
    """A server that was killed while one sandbox ran, with a value in its memory."""
    rig = await _started(tmp_path / "home")
    sandbox = await rig.create(**request)
    await rig.put(sandbox.id, "value", 1)
    after = crash(rig, tmp_path / "after")
    await rig.node.stop()
    return after, sandbox


async def _reason(rig: Rig, sandbox: Sandbox) -> str:
    """Why the sandbox is lost, once it is."""

    async def is_lost() -> bool:
        return (await _rows(rig))[sandbox.id].state is State.LOST

    await eventually(is_lost, 20)
    with pytest.raises(SandboxLost) as told:
        await rig.node.sandboxes.get(sandbox.id)
    reason = (await _rows(rig))[sandbox.id].reason
    assert reason
    assert reason in str(told.value)
    return reason


async def test_an_adopted_sandbox_is_like_any_other(tmp_path: Path) -> None:
    after, sandbox = await _crashed(tmp_path)
    rig = await after.restart()
    told = [entry.fields["event"] for entry in await rig.node.telemetry.logs(sandbox.id)]
    assert told[0] == "create"
    assert "adopted" in told
    assert await rig.read(sandbox.id, "value") == 1
    (await rig.instance(sandbox.id)).die("it fell over")
    assert await _reason(rig, sandbox) == "it fell over"
    await rig.node.stop()


async def test_a_deadline_that_passed_without_a_server_is_kept_at_once(tmp_path: Path) -> None:
    after, sandbox = await _crashed(tmp_path, timeout=1.0)
    await asyncio.sleep(max(0.0, sandbox.end_at - time.time()))
    rig = await after.restart()

    async def is_paused() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED

    await eventually(is_paused, 20)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1
    await rig.node.stop()


async def test_a_vm_that_is_gone_makes_its_sandbox_lost(tmp_path: Path) -> None:
    after, sandbox = await _crashed(tmp_path)
    after.vms.clear()
    rig = await after.restart()
    assert "ended while no server watched it" in await _reason(rig, sandbox)
    await _check_nothing_leaks(rig)
    await rig.node.stop()


@pytest.mark.parametrize("step", ["adopt", "thaw"])
async def test_a_vm_that_cannot_go_on_makes_its_sandbox_lost(tmp_path: Path, step: str) -> None:
    after, sandbox = await _crashed(tmp_path)
    await after.revive()
    after.runtime.order_failure(step, RuntimeFailure("it is of another version"))
    rig = await after.restart()
    assert "of another version" in await _reason(rig, sandbox)
    await rig.node.sandboxes._core.tasks.drain()
    await _check_nothing_leaks(rig)
    await rig.node.stop()


async def test_a_vm_whose_network_is_gone_makes_its_sandbox_lost(tmp_path: Path) -> None:
    after, sandbox = await _crashed(tmp_path)
    await after.revive()
    after.network = FakeSlotPool()
    rig = await after.restart()
    assert "did not survive" in await _reason(rig, sandbox)
    await rig.node.sandboxes._core.tasks.drain()
    await _check_nothing_leaks(rig)
    await rig.node.stop()


async def test_an_agent_that_does_not_answer_holds_up_nobody_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await _started(tmp_path / "home")
    deaf, other = await rig.create(), await rig.create()
    (await rig.instance(deaf.id)).guest.responsive.clear()
    pausing = asyncio.ensure_future(rig.node.sandboxes.pause(deaf.id))

    async def is_under_way() -> bool:
        return (await rig.node.sandboxes.get(deaf.id)).state is State.PAUSING

    await eventually(is_under_way)
    after = crash(rig, tmp_path / "after")
    (await rig.instance(deaf.id)).guest.responsive.set()
    await pausing
    await rig.node.stop()

    monkeypatch.setattr("aenv.sandboxes.core.RETRY_SECONDS", 0.1)
    for bound in ("ADOPTION_SECONDS", "GUEST_TIMEOUT", "FREEZE_TIMEOUT"):
        monkeypatch.setattr(recovery, bound, 0.1)
    await after.revive()
    guest = after.runtime.instances[str(deaf.instance_id)].guest
    guest.responsive.clear()
    rig = await after.restart()
    await rig.put(other.id, "value", 1)
    await rig.node.sandboxes.set_timeout(deaf.id, 60)
    assert (await rig.node.sandboxes.get(deaf.id)).state is State.RUNNING
    guest.memory["frozen"] = True

    async def goes_on() -> bool:
        return guest.memory["frozen"] is False

    guest.responsive.set()
    await eventually(goes_on, 20)
    await rig.node.sandboxes.pause(deaf.id)
    await rig.node.stop()


async def test_a_start_that_fails_leaves_what_runs_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, sandbox = await _crashed(tmp_path)

    async def refuse(*_: object) -> None:
        raise HostNotReady("the host lacks something")

    with monkeypatch.context() as patch:
        patch.setattr(Telemetry, "start", refuse)
        with pytest.raises(HostNotReady):
            await after.restart()
    rig = await after.restart()
    assert await rig.read(sandbox.id, "value") == 1
    await rig.node.stop()


async def test_what_cannot_be_paused_when_the_server_stops_waits_for_the_next_one(tmp_path: Path) -> None:
    after, sandbox = await _crashed(tmp_path)
    rig = await after.restart()
    rig.runtime.order_failure("capture", RuntimeFailure("the disk is full"))
    await rig.node.stop()
    assert len(rig.runtime.instances) == 1
    rig = await after.restart()
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING
    assert await rig.read(sandbox.id, "value") == 1
    await rig.node.stop()
    assert not rig.runtime.instances


async def test_a_vm_that_cannot_be_left_keeps_no_other_from_being_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = await _started(tmp_path / "home")
    ids = [(await rig.create()).id for _ in range(3)]
    slots: list[Slot] = []

    async def leave(_network: FakeSlotPool, slot: Slot) -> None:
        slots.append(slot)

    monkeypatch.setattr(FakeSlotPool, "leave", leave)
    for _ in ids:
        rig.runtime.order_failure("capture", RuntimeFailure("the disk is full"))
    rig.runtime.order_failure("leave", RuntimeFailure("ordered"))
    await rig.node.stop()
    instances = list(rig.runtime.instances.values())
    assert [each.left for each in instances].count(True) == 2
    assert slots == [each.place.slot for each in instances]
    told = capsys.readouterr().out
    assert told.count("couldn't be paused") == 3
    assert told.count("a VM wasn't left well") == 1
    for instance in instances:
        await instance.stop()


async def test_vms_that_cannot_be_left_in_time_hold_up_a_stop_together_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "LEAVE_SECONDS", 1.0)
    rig = await _started(tmp_path / "home")
    for _ in range(20):
        await rig.create()
        rig.runtime.order_failure("capture", RuntimeFailure("the disk is full"))
    with rig.runtime.hold("leave"):
        begun = time.monotonic()
        await rig.node.stop()
        assert time.monotonic() - begun < 15
    assert capsys.readouterr().out.count("a VM wasn't left well") == 20
    for instance in list(rig.runtime.instances.values()):
        await instance.stop()
