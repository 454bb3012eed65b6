"""A running sandbox is put back to one of its snapshots, in place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aenv.errors import (
    Conflict,
    GuestUnresponsive,
    InvalidRequest,
    RuntimeFailure,
    SandboxNotFound,
    SnapshotNotFound,
    StorageFailure,
)
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually


async def _layers(rig: Rig) -> int:
    return sum(1 for path in rig.settings.captures_dir.rglob("*") if path.is_file())


@asynccontextmanager
async def _under_way(rig: Rig, sandbox_id: str, snapshot: str, *, held_at: str) -> AsyncIterator[None]:
    """A rollback that stands still during the block, and has ended after it."""

    async def is_under_way() -> bool:
        return (await rig.node.sandboxes.get(sandbox_id)).state is State.ROLLING_BACK

    with rig.runtime.hold(held_at):
        rolling = asyncio.ensure_future(rig.node.sandboxes.roll_back(sandbox_id, snapshot))
        await eventually(is_under_way)
        yield
    await rolling


async def test_memory_and_files_are_those_of_the_snapshot(rig: Rig) -> None:
    sandbox = await rig.create(metadata={"a": "b"}, env={"X": "1"})
    sandboxes = rig.node.sandboxes
    for key, where in (("value", "memory"), ("file", "disk")):
        await rig.put(sandbox.id, key, "old", where)
    snapshot = await sandboxes.snapshot(sandbox.id)
    for key, where in (("value", "memory"), ("file", "disk")):
        await rig.put(sandbox.id, key, "new", where)
    before = await sandboxes.get(sandbox.id)
    old = await rig.instance(sandbox.id)
    await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)

    assert await rig.read(sandbox.id, "value") == "old"
    assert await rig.read(sandbox.id, "file", "disk") == "old"
    after = await sandboxes.get(sandbox.id)
    kept = ("state", "end_at", "timeout", "envd_token", "metadata", "env", "started_at", "template_id")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert after.instance_id != before.instance_id
    assert (await rig.instance(sandbox.id)).guest.identity["sandboxId"] == sandbox.id

    async def old_vm_has_ended() -> bool:
        return old not in rig.runtime.instances.values() and old.ended.done()

    await eventually(old_vm_has_ended)


async def test_it_can_be_done_again_and_to_any_snapshot(rig: Rig) -> None:
    """Also over a pause, and to one of before a pause."""
    sandbox = await rig.create()
    sandboxes = rig.node.sandboxes
    snapshots = []
    for number in range(3):
        await rig.put(sandbox.id, "value", number)
        snapshots.append((await sandboxes.snapshot(sandbox.id)).snapshot_id)
        await sandboxes.pause(sandbox.id)
        await sandboxes.connect(sandbox.id, 60)
    for number in (2, 0, 0, 1, 2):
        await sandboxes.roll_back(sandbox.id, snapshots[number])
        assert await rig.read(sandbox.id, "value") == number
        await rig.put(sandbox.id, "value", "spoilt")
    await sandboxes.roll_back(sandbox.id, snapshots[1])
    await sandboxes.pause(sandbox.id)
    await sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_snapshot_of_the_disk_alone_reboots_the_sandbox(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "file", "kept", "disk")
    await rig.put(sandbox.id, "value", "gone")
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id, memory=False)
    boot = (await rig.instance(sandbox.id)).guest.boot_id
    await rig.node.sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    assert await rig.read(sandbox.id, "file", "disk") == "kept"
    assert await rig.read(sandbox.id, "value") is None
    assert (await rig.instance(sandbox.id)).guest.boot_id != boot


async def test_traffic_under_way_is_cut_and_new_traffic_waits(rig: Rig) -> None:
    sandbox = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    before = rig.node.sandboxes.live_endpoint(sandbox.id)
    assert before is not None
    async with _under_way(rig, sandbox.id, snapshot.snapshot_id, held_at="thaw"):
        assert rig.node.sandboxes.live_endpoint(sandbox.id) is None
        waiting = asyncio.ensure_future(rig.node.sandboxes.endpoint(sandbox.id))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    assert before.gone.is_set()
    after = await waiting
    assert not after.gone.is_set()
    assert after.host != before.host
    assert after.envd_token == before.envd_token


async def test_only_its_own_snapshots_will_do(rig: Rig) -> None:
    sandboxes = rig.node.sandboxes
    sandbox, other = await rig.create(), await rig.create()
    foreign = await sandboxes.snapshot(other.id)
    with pytest.raises(InvalidRequest, match="no snapshot of sandbox"):
        await sandboxes.roll_back(sandbox.id, foreign.snapshot_id)
    with pytest.raises(InvalidRequest, match="no snapshot of sandbox"):
        await sandboxes.roll_back(sandbox.id, "base")
    with pytest.raises(SnapshotNotFound):
        await sandboxes.roll_back(sandbox.id, "nothing")
    (child,) = await sandboxes.fork(other.id, 1)
    assert isinstance(child, Sandbox)
    with pytest.raises(InvalidRequest, match="no snapshot of sandbox"):
        await sandboxes.roll_back(child.id, foreign.snapshot_id)


async def test_what_does_not_run_is_refused(rig: Rig) -> None:
    sandboxes = rig.node.sandboxes
    sandbox = await rig.create()
    snapshot = await sandboxes.snapshot(sandbox.id)
    await sandboxes.pause(sandbox.id)
    with pytest.raises(Conflict, match="paused"):
        await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    await sandboxes.kill(sandbox.id)
    with pytest.raises(SandboxNotFound):
        await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)


@pytest.mark.parametrize("step", ["freeze", "load", "thaw", "record"])
async def test_a_failure_leaves_the_sandbox_as_it_was(
    rig: Rig, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    sandboxes = rig.node.sandboxes
    snapshot = await sandboxes.snapshot(sandbox.id)
    await rig.put(sandbox.id, "value", "now")
    before = await sandboxes.get(sandbox.id)
    slots = len(rig.network.in_use)
    if step == "record":
        monkeypatch.setattr("aenv.sandboxes.rollback.store.change", _full)
    else:
        rig.runtime.order_failure(step, RuntimeFailure("no"))
    with pytest.raises((RuntimeFailure, StorageFailure)):
        await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    monkeypatch.undo()
    assert await sandboxes.get(sandbox.id) == before
    assert await rig.read(sandbox.id, "value") == "now"
    if rig.settings.hot_vms == 0:
        assert len(rig.network.in_use) == slots
    await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    assert await rig.read(sandbox.id, "value") is None


def _full(*_: object, **changes: object) -> None:
    raise StorageFailure("the disk is full")


async def test_a_snapshot_whose_agent_is_deaf_leaves_the_sandbox_as_it_was(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    await rig.put(sandbox.id, "value", "now")

    async def deaf(*_: object, **__: object) -> None:
        raise GuestUnresponsive("the agent didn't answer")

    with monkeypatch.context() as broken:
        broken.setattr(rig.node.starter, "start", deaf)
        with pytest.raises(GuestUnresponsive):
            await rig.node.sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    assert await rig.read(sandbox.id, "value") == "now"
    assert await rig.read(sandbox.id, "frozen") is False


async def test_if_the_old_vm_dies_meanwhile_the_new_one_has_taken_its_place(rig: Rig) -> None:
    sandbox = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    old = await rig.instance(sandbox.id)
    async with _under_way(rig, sandbox.id, snapshot.snapshot_id, held_at="thaw"):
        old.die("killed")
    await rig.node.sandboxes._core.tasks.drain()
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING


async def test_a_snapshot_that_is_deleted_meanwhile_is_still_used(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", "old")
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    await rig.node.sandboxes.pause(sandbox.id)  # so that the sandbox doesn't depend on the snapshot's capture
    await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.put(sandbox.id, "value", "new")
    async with _under_way(rig, sandbox.id, snapshot.snapshot_id, held_at="freeze"):
        await rig.node.templates.delete(snapshot.id)
    assert await rig.read(sandbox.id, "value") == "old"


async def test_what_only_the_old_state_needed_is_removed(rig: Rig) -> None:
    sandbox = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    await rig.node.sandboxes._core.tasks.drain()
    layers = await _layers(rig)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.node.sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)

    async def only_the_snapshot_is_left() -> bool:
        return await _layers(rig) == layers

    await eventually(only_the_snapshot_is_left)


async def test_the_log_goes_on_with_what_happens_after(rig: Rig) -> None:
    """The guest's journal is the one of the snapshot again, and gives out its numbers once more."""
    sandbox = await rig.create()
    guest = (await rig.instance(sandbox.id)).guest
    guest.note("before")
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    for number in range(250):
        guest.note(f"given up {number}")
    await rig.node.telemetry.logs(sandbox.id)
    await rig.node.sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)
    guest = (await rig.instance(sandbox.id)).guest
    for number in range(250):
        guest.note(f"after {number}")
    await rig.node.telemetry.close()
    told = [entry.message for entry in await rig.node.telemetry.logs(sandbox.id)]
    noted = ["before", *(f"given up {n}" for n in range(250)), *(f"after {n}" for n in range(250))]
    assert [message for message in told if message in set(noted)] == noted
    assert f"sandbox put back to snapshot {snapshot.snapshot_id}" in told
