"""What captures leave behind is tightened in the background; whatever a client does comes first."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from aenv.errors import RuntimeFailure
from aenv.node import Node
from aenv.runtimes import fake
from aenv.sandboxes import activity, compaction, reserve, store
from aenv.sandboxes.compaction import Compaction
from aenv.sandboxes.models import Sandbox, Template
from aenv.sandboxes.reserve import Reserve
from aenv.sandboxes.states import State
from aenv.tasks import cancel
from aenv.templates import store as templates_store
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every moment is quiet."""
    monkeypatch.setattr(activity, "QUIET_SECONDS", 0.01)


async def _started(home: Path, *, stopped_vms: int) -> Rig:
    """A node without spare VMs."""
    settings = fake_settings(home, stopped_vms=stopped_vms, hot_vms=0, bare_vms=0)
    node = Node(settings)
    await node.start()
    return Rig(node, settings)


@pytest.fixture
async def wasteful(tmp_path: Path) -> AsyncIterator[Rig]:
    """A node, to which a test may give a successor, whose captures are all worth a compaction."""
    rig = await _started(tmp_path / "home", stopped_vms=0)
    rig.runtime.wasteful = True
    yield rig
    rig.runtime.compacting.set()
    await rig.node.stop()
    assert not rig.runtime.instances


@pytest.fixture
async def sandbox(wasteful: Rig) -> Sandbox:
    """A running sandbox with a value in it."""
    sandbox = await _settled(wasteful)
    await wasteful.put(sandbox.id, "value", 1)
    return sandbox


async def _settled(rig: Rig) -> Sandbox:
    """A running sandbox that was looked at since it started, as was all that there was before."""
    sandbox = await rig.create()

    async def looked_at() -> bool:
        return rig.runtime.asked == 1 + len(rig.runtime.instances)  # 1 is the base template

    await eventually(looked_at)
    return sandbox


def _files(rig: Rig) -> set[str]:
    found = os.walk(rig.settings.captures_dir)  # unlike a glob it bears folders that go meanwhile
    return {f"{Path(folder).name}/{name}" for folder, _, names in found for name in names}


async def _compacted(rig: Rig, sandbox_id: str) -> bool:
    capture_id = (await rig.node.sandboxes.get(sandbox_id)).capture_id
    return any("compact" in file for file in _files(rig) if file.startswith(capture_id))


async def _settles_to(rig: Rig, files: set[str]) -> None:
    """What isn't needed any more is removed in the background."""

    async def settled() -> bool:
        return _files(rig) == files

    await eventually(settled)


async def _compacting(rig: Rig) -> None:
    """Wait until a compaction is in its middle."""

    async def begun() -> bool:
        return any("compact" in file for file in _files(rig))

    await eventually(begun)


async def test_a_paused_sandbox_is_compacted_and_the_old_capture_goes(
    wasteful: Rig, sandbox: Sandbox
) -> None:
    before = _files(wasteful)
    await wasteful.node.sandboxes.pause(sandbox.id)
    await eventually(lambda: _compacted(wasteful, sandbox.id))

    async def tidy() -> bool:
        return len(_files(wasteful) - before) == 2

    await eventually(tidy)
    await wasteful.node.sandboxes.connect(sandbox.id, 60)
    assert await wasteful.read(sandbox.id, "value") == 1
    await wasteful.node.sandboxes.kill(sandbox.id)
    await _settles_to(wasteful, before)


async def test_a_snapshot_stays_what_it_is(wasteful: Rig, sandbox: Sandbox) -> None:
    snapshot = await wasteful.node.sandboxes.snapshot(sandbox.id)
    files = _files(wasteful)
    await wasteful.node.sandboxes.pause(sandbox.id)
    await eventually(lambda: _compacted(wasteful, sandbox.id))
    await wasteful.node.sandboxes.kill(sandbox.id)
    await _settles_to(wasteful, files)
    copy = await wasteful.create(template=snapshot.id)
    assert await wasteful.read(copy.id, "value") == 1


@pytest.fixture
def strict(wasteful: Rig, sandbox: Sandbox) -> Rig:
    """The node of the sandbox; it bears no more where VMs are kept, as hot ones of a snapshot are."""
    del sandbox  # by now the base template was looked at, too
    wasteful.runtime.bears_more = False
    return wasteful


async def _capture_of(rig: Rig, snapshot: Template) -> str | None:
    return await rig.node.captures._database.run(lambda c: templates_store.capture_of(c, snapshot.build.id))


async def _snapshot_is_compacted(rig: Rig, snapshot: Template) -> None:
    async def has_changed() -> bool:
        return await _capture_of(rig, snapshot) not in (snapshot.build.capture_id, None)

    await eventually(has_changed)


async def test_a_snapshot_is_compacted_and_is_what_it_was(strict: Rig, sandbox: Sandbox) -> None:
    before = _files(strict)
    snapshot = await strict.node.sandboxes.snapshot(sandbox.id)
    await _snapshot_is_compacted(strict, snapshot)
    await strict.put(sandbox.id, "value", 2)
    await strict.node.sandboxes.kill(sandbox.id)

    async def only_the_new_files_are_left() -> bool:
        more = _files(strict) - before
        return len(more) == 2 and all("/compact-" in file for file in more)

    await eventually(only_the_new_files_are_left)
    copy = await strict.create(template=snapshot.id)
    assert await strict.read(copy.id, "value") == 1
    await strict.node.sandboxes.kill(copy.id)
    await strict.node.templates.delete(snapshot.id)
    await _settles_to(strict, before)


async def test_what_was_started_from_a_snapshot_before_it_was_compacted_goes_on(
    strict: Rig, sandbox: Sandbox
) -> None:
    strict.runtime.compacting.clear()
    snapshot = await strict.node.sandboxes.snapshot(sandbox.id)
    await _compacting(strict)
    copy = await strict.create(template=snapshot.id)
    await strict.put(copy.id, "value", 2)
    strict.runtime.compacting.set()
    await _snapshot_is_compacted(strict, snapshot)
    await strict.node.sandboxes.pause(copy.id)
    await strict.node.sandboxes.connect(copy.id, 60)
    assert await strict.read(copy.id, "value") == 2
    await strict.node.sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    assert await strict.read(sandbox.id, "value") == 1


@pytest.mark.parametrize("operation", ["delete", "take again"])
async def test_a_snapshot_that_goes_meanwhile_leaves_nothing(
    strict: Rig, sandbox: Sandbox, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strict.runtime.compacting.clear()
    snapshot = await strict.node.sandboxes.snapshot(sandbox.id, "name")
    await _compacting(strict)
    strict.runtime.wasteful = False
    if operation == "delete":
        await strict.node.templates.delete(snapshot.id)
    else:
        await strict.node.sandboxes.snapshot(sandbox.id, "name")
    strict.runtime.compacting.set()

    async def dropped() -> bool:
        return not any("compact" in file for file in _files(strict))

    await eventually(dropped)
    assert await _capture_of(strict, snapshot) is None
    assert "can't be compacted" not in capsys.readouterr().out


async def test_what_starts_on_a_long_chain_does_not_hand_it_on(strict: Rig, sandbox: Sandbox) -> None:
    (child,) = await strict.node.sandboxes.fork(sandbox.id, 1)
    assert isinstance(child, Sandbox)
    instance = await strict.instance(child.id)

    async def asked() -> bool:
        return instance.compactions == 1

    await eventually(asked)


async def test_snapshots_of_an_earlier_server_are_compacted(wasteful: Rig, sandbox: Sandbox) -> None:
    snapshot = await wasteful.node.sandboxes.snapshot(sandbox.id)
    await wasteful.node.sandboxes.kill(sandbox.id)
    await wasteful.node.stop()
    wasteful.node = (await _started(wasteful.settings.home, stopped_vms=0)).node
    wasteful.runtime.wasteful, wasteful.runtime.bears_more = True, False
    compaction = wasteful.node.sandboxes._core.on_captured.__self__  # type: ignore[attr-defined]
    await compaction._want_all()
    await _snapshot_is_compacted(wasteful, snapshot)


@pytest.mark.parametrize("operation", ["connect", "kill"])
async def test_what_a_client_does_meanwhile_wins(
    wasteful: Rig, sandbox: Sandbox, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(wasteful)
    wasteful.runtime.compacting.clear()
    await wasteful.node.sandboxes.pause(sandbox.id)
    await _compacting(wasteful)
    if operation == "kill":
        await wasteful.node.sandboxes.kill(sandbox.id)
    else:
        await wasteful.node.sandboxes.connect(sandbox.id, 60)
    wasteful.runtime.compacting.set()

    async def dropped() -> bool:
        return not any("compact" in file for file in _files(wasteful))

    await eventually(dropped)
    if operation == "connect":
        assert await wasteful.read(sandbox.id, "value") == 1
    else:
        await _settles_to(wasteful, before)
    assert "can't be compacted" not in capsys.readouterr().out


async def test_a_compaction_that_fails_changes_nothing(wasteful: Rig, sandbox: Sandbox) -> None:
    wasteful.runtime.order_failure("compact", RuntimeFailure("no room"))
    await wasteful.node.sandboxes.pause(sandbox.id)
    capture_id = (await wasteful.node.sandboxes.get(sandbox.id)).capture_id

    async def given_up() -> bool:
        return not wasteful.runtime._failures["compact"] and not any("compact" in f for f in _files(wasteful))

    await eventually(given_up)
    assert (await wasteful.node.sandboxes.get(sandbox.id)).capture_id == capture_id
    await wasteful.node.sandboxes.connect(sandbox.id, 60)
    assert await wasteful.read(sandbox.id, "value") == 1
    await wasteful.node.sandboxes.pause(sandbox.id)
    await eventually(lambda: _compacted(wasteful, sandbox.id))


async def test_a_database_that_cannot_be_read_only_delays(
    wasteful: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    wasteful.runtime.wasteful = False
    await wasteful.node.sandboxes.pause(sandbox.id)
    wasteful.runtime.wasteful = True
    original, tries = store.in_states, 0

    def in_states(connection: sqlite3.Connection, states: Collection[State]) -> list[Sandbox]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise sqlite3.OperationalError("disk I/O error")
        return original(connection, states)

    monkeypatch.setattr(store, "in_states", in_states)
    monkeypatch.setattr(compaction, "RETRY_SECONDS", 0.01)
    another = Compaction(
        wasteful.node.sandboxes._core, wasteful.runtime, Reserve(wasteful.settings.home / "reserve", 1 << 20)
    )
    running = asyncio.ensure_future(another.run())
    try:
        await eventually(lambda: _compacted(wasteful, sandbox.id), 20)
    finally:
        await cancel(running)


async def test_a_stopping_server_waits_for_no_compaction(
    wasteful: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    wasteful.runtime.compacting.clear()
    await wasteful.node.sandboxes.pause(sandbox.id)
    await _compacting(wasteful)
    files = {file for file in _files(wasteful) if "compact" not in file}
    await asyncio.wait_for(wasteful.node.stop(), 10)
    assert _files(wasteful) == files

    monkeypatch.setattr(fake, "WASTEFUL", True)
    wasteful.node = Node(wasteful.settings)  # it looks at all that are paused
    await wasteful.node.start()
    await eventually(lambda: _compacted(wasteful, sandbox.id))
    await wasteful.node.sandboxes.connect(sandbox.id, 60)
    assert await wasteful.read(sandbox.id, "value") == 1


async def test_a_running_vm_is_asked_to_compact_after_each_capture(rig: Rig) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    await rig.node.sandboxes.snapshot(sandbox.id)

    async def asked() -> bool:
        return instance.compactions == 1

    await eventually(asked)
    rig.runtime.order_failure("compact", RuntimeFailure("no room"))
    await rig.node.sandboxes.snapshot(sandbox.id)

    async def failed() -> bool:
        return not rig.runtime._failures["compact"]

    await eventually(failed)
    await rig.put(sandbox.id, "value", 1)
    assert await rig.read(sandbox.id, "value") == 1


async def test_nothing_is_compacted_unless_old_and_new_fit_beside_the_reserve(
    wasteful: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sandbox, await _settled(wasteful)
    reserved = wasteful.settings.reserve_mib << 20
    answers: list[bool] = []
    fits = Reserve.has_room

    def has_room(kept: Reserve, need: int) -> bool:
        answers.append(fits(kept, need))
        return answers[-1]

    async def looked_at() -> bool:
        return answers == [False]

    monkeypatch.setattr(Reserve, "has_room", has_room)
    with monkeypatch.context() as full:
        full.setattr(reserve, "free_bytes", lambda _folder: reserved + 4096)  # each of two layers has a block
        await wasteful.node.sandboxes.pause(first.id)
        await eventually(looked_at, 20)
    await wasteful.node.sandboxes.pause(second.id)
    await eventually(lambda: _compacted(wasteful, second.id))
    assert not await _compacted(wasteful, first.id)


async def test_a_paused_sandbox_is_compacted_though_its_vm_is_given_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await _started(tmp_path / "home", stopped_vms=1)
    sandbox = await rig.create()
    rig.runtime.wasteful = True

    async def given_up() -> bool:
        ending = rig.node.starter.stopped.give_up()
        assert ending is not None
        await ending
        raise RuntimeFailure("the VM has ended")

    monkeypatch.setattr(await rig.instance(sandbox.id), "compact", given_up)
    await rig.node.sandboxes.pause(sandbox.id)
    await eventually(lambda: _compacted(rig, sandbox.id), 20)
    await rig.node.stop()
    assert not rig.runtime.instances
