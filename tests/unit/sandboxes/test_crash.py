"""The server is killed at every step of every operation; the next one loses nothing, and nothing leaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, fake_settings
from tests.unit.sandboxes.crash import Crash, Crashes, side_by_side

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


OPERATIONS: dict[str, Callable[[Rig, str, str], Awaitable[object]]] = {
    "create": lambda rig, _running, _paused: rig.create(),
    "pause": lambda rig, running, _paused: rig.node.sandboxes.pause(running),
    "pause the disk": lambda rig, running, _paused: rig.node.sandboxes.pause(running, memory=False),
    "resume": lambda rig, _running, paused: rig.node.sandboxes.connect(paused, 60),
    "snapshot": lambda rig, running, _paused: rig.node.sandboxes.snapshot(running, "again"),
    "fork": lambda rig, running, _paused: rig.node.sandboxes.fork(running, 2),
    "kill": lambda rig, running, _paused: rig.node.sandboxes.kill(running),
    "kill a paused one": lambda rig, _running, paused: rig.node.sandboxes.kill(paused),
}


@pytest.mark.parametrize("stopped_vms", [0, 4])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_crash_at_any_step_loses_and_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, stopped_vms: int
) -> None:
    rig = await _started(tmp_path / "home", stopped_vms=stopped_vms)
    running, paused, bystander = [await rig.create() for _ in range(3)]
    await rig.put(running.id, "value", "in memory")
    await rig.put(running.id, "value", "on disk", "disk")
    await rig.put(paused.id, "value", "of the paused one")
    await rig.put(bystander.id, "value", "of the bystander")
    snapshot = await rig.node.sandboxes.snapshot(paused.id, "again")
    await rig.node.sandboxes.pause(paused.id)
    with monkeypatch.context() as patch, Crashes(rig, tmp_path, patch.setattr) as crashes:
        await OPERATIONS[operation](rig, running.id, paused.id)
        await rig.node.sandboxes._core.tasks.drain()
    await rig.node.stop()
    assert len(crashes.found) > 5

    async def check(after: Crash) -> None:
        rig = await after.restart()
        try:
            await _check_nothing_leaks(rig)
            rows = await _rows(rig)
            assert {each.state for each in rows.values()} <= {State.RUNNING, State.PAUSED}
            assert running.id in rows or operation == "kill"
            assert paused.id in rows or operation == "kill a paused one"
            assert rows[bystander.id].state is State.RUNNING
            assert await rig.read(bystander.id, "value") == "of the bystander"
            for sandbox_id in rows:
                await rig.node.sandboxes.connect(sandbox_id, 60)
            if running.id in rows:
                whole = rows[running.id].pause_mode == "full"
                assert await rig.read(running.id, "value") == ("in memory" if whole else None)
                assert await rig.read(running.id, "frozen") is not True
            if paused.id in rows:
                assert await rig.read(paused.id, "value") == "of the paused one"
            copy = await rig.create(template=snapshot.id)
            assert await rig.read(copy.id, "value") in {"of the paused one", "in memory"}
            await rig.node.sandboxes.pause(copy.id)
        except Exception as error:
            raise AssertionError(f"after a crash {after.where}") from error
        finally:
            await rig.node.stop()

    await side_by_side([check(each) for each in crashes.found])
