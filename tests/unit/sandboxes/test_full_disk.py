"""A guest that finds the host's disk full waits, goes on or is paused; nothing that it did is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.errors import NoSpace
from aenv.full import free_bytes
from aenv.node import Node
from aenv.sandboxes import reserve, room, store
from aenv.sandboxes.room import PAUSED_BECAUSE
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings

MIB = 1 << 20


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PROOF_SECONDS", 0.2)
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.1)


def _fill(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, room_for_captures: bool) -> None:
    """The disk is full, until the runtime is told otherwise."""
    rig.runtime.disk_is_full, rig.runtime.room_for_captures = True, room_for_captures
    monkeypatch.setattr(
        reserve, "free_bytes", lambda path: 0 if rig.runtime.disk_is_full else free_bytes(path)
    )


async def _state(rig: Rig, sandbox_id: str) -> State:
    database = rig.node.sandboxes._core.database
    found = await database.run(lambda c: store.get(c, sandbox_id))
    assert found is not None
    return found.state


async def _paused(rig: Rig, sandbox_id: str) -> bool:
    return await _state(rig, sandbox_id) is State.PAUSED


def _waits(rig: Rig, sandbox_id: str) -> bool:
    return rig.node.sandboxes._core.live.waits_for_room(sandbox_id)


async def test_a_guest_goes_on_when_room_was_made(rig: Rig) -> None:
    other, sandbox = await rig.create(), await rig.create()
    await rig.put(sandbox.id, "value", 1)
    await rig.node.sandboxes.pause(other.id)
    (await rig.instance(sandbox.id)).stall()

    async def goes_on() -> bool:
        instance = await rig.instance(sandbox.id)
        return not instance.no_space.is_set() and rig.node.sandboxes.live_endpoint(sandbox.id) is not None

    await eventually(goes_on, 20)
    assert await rig.read(sandbox.id, "value") == 1
    assert rig.node.starter.stopped.count() == 0, "a VM that is only a cache is given up for one that works"
    await rig.node.sandboxes.connect(other.id, 60)
    (await rig.instance(sandbox.id)).stall()  # it may happen again
    await eventually(goes_on, 20)


async def test_a_guest_that_still_cannot_write_is_paused_with_the_reason(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    _fill(rig, monkeypatch, room_for_captures=True)
    (await rig.instance(sandbox.id)).stall()
    await eventually(lambda: _paused(rig, sandbox.id), 20)
    record = await rig.node.sandboxes.get(sandbox.id)
    assert (record.reason, record.pause_mode) == (PAUSED_BECAUSE, "full")
    assert record.memory_is_usable
    told = [entry.message for entry in await rig.node.telemetry.logs(sandbox.id)]
    assert told[-2:] == [
        "the host's disk is full: the sandbox waits for room",
        f"sandbox paused: {PAUSED_BECAUSE}",
    ]
    assert not (rig.settings.home / "reserve").exists()

    with pytest.raises(NoSpace, match="stands still"):  # at once, not after a time-out
        await asyncio.wait_for(rig.node.sandboxes.connect(sandbox.id, 60), 20)
    assert await _paused(rig, sandbox.id)

    rig.runtime.disk_is_full = False
    resumed, _ = await rig.node.sandboxes.connect(sandbox.id, 60)
    assert resumed.reason is None
    assert await rig.read(sandbox.id, "value") == 1

    async def kept_again() -> bool:
        return (rig.settings.home / "reserve").exists()

    await eventually(kept_again, 20)


async def test_a_vm_that_cannot_even_be_paused_waits_in_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create(auto_resume=True)
    await rig.put(sandbox.id, "value", 1)
    _fill(rig, monkeypatch, room_for_captures=False)
    (await rig.instance(sandbox.id)).stall()

    async def waits() -> bool:
        return _waits(rig, sandbox.id) and not (rig.settings.home / "reserve").exists()

    await eventually(waits, 20)
    sandboxes = rig.node.sandboxes
    with pytest.raises(NoSpace, match="goes on when there is room") as refusal:
        await sandboxes.endpoint(sandbox.id)
    assert refusal.value.retry_after
    with pytest.raises(NoSpace):
        await sandboxes.snapshot(sandbox.id)
    with pytest.raises(NoSpace):
        await sandboxes.fork(sandbox.id, 2)
    with pytest.raises(NoSpace):
        await sandboxes.pause(sandbox.id)
    with pytest.raises(NoSpace):
        await sandboxes.pause(sandbox.id, memory=False)
    assert await _state(rig, sandbox.id) is State.RUNNING

    rig.runtime.disk_is_full = False

    async def goes_on() -> bool:
        return not _waits(rig, sandbox.id)

    await eventually(goes_on, 20)
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_sandbox_that_waits_can_be_killed(rig: Rig) -> None:
    sandbox = await rig.create()
    rig.runtime.disk_is_full, rig.runtime.room_for_captures = True, False
    (await rig.instance(sandbox.id)).stall()

    async def waits() -> bool:
        return _waits(rig, sandbox.id)

    await eventually(waits, 20)
    await rig.node.sandboxes.kill(sandbox.id)
    assert not rig.node.sandboxes.room._watchers.keys() & {sandbox.instance_id}


async def test_a_pause_on_a_full_disk_gets_the_reserve(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, bystander = await rig.create(), await rig.create()
    await rig.put(sandbox.id, "value", 1)
    with monkeypatch.context() as full:
        full.setattr(reserve, "free_bytes", lambda _folder: MIB)  # enough to try, too little in the end
        rig.runtime.order_failure("capture", NoSpace("full"))
        await rig.node.sandboxes.pause(sandbox.id)
        assert not (rig.settings.home / "reserve").exists()
    assert (await rig.node.sandboxes.get(sandbox.id)).reason is None
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1

    for _ in range(2):
        rig.runtime.order_failure("capture", NoSpace("full"))
    with pytest.raises(NoSpace):
        await rig.node.sandboxes.pause(sandbox.id)
    assert await rig.read(sandbox.id, "value") == 1  # it runs on
    await rig.put(bystander.id, "value", 2)


async def test_every_sandbox_that_waits_is_helped(rig: Rig) -> None:
    sandboxes = [await rig.create() for _ in range(4)]
    for number, sandbox in enumerate(sandboxes):
        await rig.put(sandbox.id, "value", number)
    rig.runtime.disk_is_full = True
    for sandbox in sandboxes:
        (await rig.instance(sandbox.id)).stall()
    for sandbox in sandboxes:
        await eventually(lambda each=sandbox.id: _paused(rig, each), 20)  # type: ignore[misc]
    rig.runtime.disk_is_full = False
    for number, sandbox in enumerate(sandboxes):
        await rig.node.sandboxes.connect(sandbox.id, 60)
        assert await rig.read(sandbox.id, "value") == number


async def test_the_reserve_is_made_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reserve"
    kept = reserve.Reserve(path, 8 * MIB)
    await kept.make()
    assert path.stat().st_blocks * 512 >= 8 * MIB
    await kept.make()
    await reserve.Reserve(path, 4 * MIB).make()  # the setting was changed
    assert path.stat().st_size == 4 * MIB
    await kept.release()
    await kept.release()
    assert not path.exists()

    monkeypatch.setattr(reserve, "free_bytes", lambda _folder: 15 * MIB)
    await kept.make()
    assert not path.exists()
    assert not kept.is_short()
    monkeypatch.setattr(reserve, "free_bytes", lambda _folder: MIB)
    assert kept.is_short()
    none = reserve.Reserve(path, 0)
    await none.make()
    assert not path.exists()
    assert not none.is_short()


async def test_a_server_without_a_reserve_starts_and_pauses(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "home", reserve_mib=0)
    rig = Rig(node := Node(settings), settings)
    await node.start()
    sandbox = await rig.create()
    await node.sandboxes.pause(sandbox.id)
    await node.stop()
    assert not (settings.home / "reserve").exists()
