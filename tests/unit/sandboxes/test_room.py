"""What may come in between while a sandbox waits for room on the host's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.errors import AenvError, NoSpace, RuntimeFailure, StorageFailure
from aenv.images.blobs import BlobStore
from aenv.images.download import Blob, digest_of
from aenv.sandboxes import capturing, core, reserve, room, store
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.reserve import Reserve
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually

FULL = NoSpace("the fake disk is full")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PROOF_SECONDS", 0.2)
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(core, "RETRY_SECONDS", 0.1)


async def _until_open(rig: Rig, sandbox_id: str) -> None:
    async def is_open() -> bool:
        return rig.node.sandboxes.live_endpoint(sandbox_id) is not None

    await eventually(is_open, 20)


async def _until_it_waits(rig: Rig, sandbox_id: str) -> None:
    async def waits() -> bool:
        return rig.node.sandboxes._core.live.waits_for_room(sandbox_id)

    await eventually(waits, 20)


async def _until_state(rig: Rig, sandbox_id: str, state: State | None) -> None:
    async def is_in_state() -> bool:
        found = await rig.node.sandboxes._core.database.run(lambda c: store.get(c, sandbox_id))
        return (None if found is None else found.state) is state

    await eventually(is_in_state, 20)


@pytest.mark.parametrize("failure", [FULL, RuntimeFailure("no")])
@pytest.mark.parametrize(("stalled_in", "memory"), [("freeze", True), ("capture", True), ("freeze", False)])
async def test_after_a_pause_that_found_the_disk_full_processes_go_on(
    rig: Rig, stalled_in: str, memory: bool, failure: AenvError
) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    instance = await rig.instance(sandbox.id)
    rig.runtime.stalls.append(stalled_in)
    for _ in range(2):
        rig.runtime.order_failure("capture", failure)
    with pytest.raises(AenvError):
        await rig.node.sandboxes.pause(sandbox.id, memory=memory)
    await _until_open(rig, sandbox.id)
    assert not instance.guest.memory["frozen"]
    assert await rig.read(sandbox.id, "value") == 1
    rig.runtime._failures.clear()


async def test_a_guest_that_cannot_write_what_it_was_asked_to_goes_on_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "SYNC_TIMEOUT", 0.5)
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1, "disk")
    instance = await rig.instance(sandbox.id)
    rig.runtime.stalls.append("sync")
    with pytest.raises(NoSpace):
        await rig.node.sandboxes.pause(sandbox.id, memory=False)
    await _until_open(rig, sandbox.id)
    assert not instance.guest.memory["frozen"]
    assert await rig.read(sandbox.id, "value", "disk") == 1


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_snapshot_under_way_that_lets_the_vm_try_again_opens_its_ports(
    rig: Rig, succeeds: bool
) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    if not succeeds:
        rig.runtime.order_failure("capture", FULL)

    async def stopped() -> bool:
        return instance.frozen

    with rig.runtime.hold("capture"):
        taking = asyncio.ensure_future(rig.node.sandboxes.snapshot(sandbox.id))
        await eventually(stopped)
        instance.stall()
        await _until_it_waits(rig, sandbox.id)
    (outcome,) = await asyncio.gather(taking, return_exceptions=True)
    assert isinstance(outcome, NoSpace) is not succeeds
    await _until_open(rig, sandbox.id)
    assert not instance.guest.memory["frozen"]


async def test_a_vm_that_could_not_be_let_go_on_is_tried_again(rig: Rig) -> None:
    sandbox = await rig.create()
    rig.runtime.order_failure("thaw", RuntimeFailure("no answer"))
    (await rig.instance(sandbox.id)).stall()
    await _until_it_waits(rig, sandbox.id)
    await _until_open(rig, sandbox.id)


@pytest.mark.parametrize("ends", ["dies", "is killed"])
async def test_stopped_vms_are_ended_even_if_who_waits_for_room_is_gone(rig: Rig, ends: str) -> None:
    others = [await rig.create() for _ in range(3)]
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    for other in others:
        await rig.node.sandboxes.pause(other.id)
    stopped = rig.node.starter.stopped
    with rig.runtime.hold("stop"):
        instance.stall()
        if rig.settings.stopped_vms:
            await eventually(lambda: _none(stopped.count), 20)
        if ends == "dies":
            instance.die("killed")
        else:
            killing = asyncio.ensure_future(rig.node.sandboxes.kill(sandbox.id))
            await _until_state(rig, sandbox.id, State.KILLING)
            instance.die("killed")
            await asyncio.sleep(0)
    if ends == "is killed":
        await killing
    await eventually(lambda: _none(lambda: _left(rig)), 20)


async def _none(count: Callable[[], int]) -> bool:
    return count() == 0


def _left(rig: Rig) -> int:
    """VMs that belong to no pool."""
    hot = rig.node.starter.hot.ready()
    return len(rig.runtime.instances.keys() - {machine.id for machine in hot})


async def test_a_stopped_vm_that_cannot_be_ended_does_not_keep_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [await rig.create() for _ in range(3)]
    for other in others:
        await rig.node.sandboxes.pause(other.id)
    machines = rig.node.sandboxes._core.machines
    destroy, stuck = machines.destroy, list[Machine]()

    async def fail_once(machine: Machine) -> None:
        if not stuck:
            stuck.append(machine)
            raise RuntimeFailure("it can't be ended")
        await destroy(machine)

    with monkeypatch.context() as broken:
        broken.setattr(machines, "destroy", fail_once)
        await rig.node.sandboxes.room.make(for_pause=True)
    for machine in stuck:
        await destroy(machine)


async def test_spares_of_every_kind_are_given_up(rig: Rig) -> None:
    await rig.pools_are_filled()
    starter = rig.node.starter
    with rig.runtime.hold("spawn"):
        await rig.node.sandboxes.room.make(for_pause=False)
        assert starter.hot.count() == starter.bare.count() == starter.stopped.count() == 0


async def test_downloaded_layers_are_given_up(rig: Rig) -> None:
    store = BlobStore(rig.node._settings.blobs_dir, max_bytes=1 << 30)
    blob = Blob(digest_of(b"layer"), 5)
    async with store.lease() as lease:
        await lease.keep(blob, b"layer")
    await rig.node.sandboxes.room.make(for_pause=False)
    assert not store.path(blob.digest).exists()


async def test_traffic_is_refused_at_once_while_the_sandbox_is_paused_for_want_of_room(rig: Rig) -> None:
    sandbox = await rig.create(auto_resume=True)
    rig.runtime.disk_is_full = True
    with rig.runtime.hold("capture"):
        (await rig.instance(sandbox.id)).stall()
        await _until_state(rig, sandbox.id, State.PAUSING)
        with pytest.raises(NoSpace, match="goes on when there is room"):
            await asyncio.wait_for(rig.node.sandboxes.endpoint(sandbox.id), 20)
    await _until_state(rig, sandbox.id, State.PAUSED)


async def test_pauses_for_want_of_room_get_the_reserve_one_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandboxes = [await rig.create() for _ in range(3)]
    rig.runtime.disk_is_full = True
    pause, under_way, most = rig.node.sandboxes.room._pause, 0, 0

    async def counted(sandbox_id: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.05)
        await pause(sandbox_id)
        under_way -= 1

    monkeypatch.setattr(rig.node.sandboxes.room, "_pause", counted)
    for sandbox in sandboxes:
        (await rig.instance(sandbox.id)).stall()
    for sandbox in sandboxes:
        await _until_state(rig, sandbox.id, State.PAUSED)
    assert most == 1


@pytest.mark.parametrize("write", ["change", "delete"])
async def test_a_kill_on_a_full_disk_gets_the_reserve(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    sandbox = await rig.create()
    monkeypatch.setattr(reserve, "free_bytes", lambda _folder: 0)  # a reserve that is gone isn't made again
    real = getattr(store, write)

    def full_while_kept(*args: object, **changes: object) -> object:
        if (rig.settings.home / "reserve").exists():
            raise FULL
        return real(*args, **changes)

    monkeypatch.setattr(store, write, full_while_kept)
    await rig.node.sandboxes.kill(sandbox.id)
    await _until_state(rig, sandbox.id, None)
    assert not (rig.settings.home / "reserve").exists()


@pytest.mark.parametrize("dies_while", ["running", "snapshotting"])
async def test_a_loss_that_cannot_be_recorded_is_recorded_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, dies_while: str
) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    real, refused = store.lose, 0

    def full(*args: object) -> None:
        nonlocal refused
        refused += 1
        if refused < 3:
            raise StorageFailure("no")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "lose", full)
    if dies_while == "running":
        instance.die("killed")
    else:
        with rig.runtime.hold("capture"):
            taking = asyncio.ensure_future(rig.node.sandboxes.snapshot(sandbox.id))
            await _until_state(rig, sandbox.id, State.SNAPSHOTTING)
            instance.die("killed")
        (outcome,) = await asyncio.gather(taking, return_exceptions=True)
        assert isinstance(outcome, AenvError)
    await _until_state(rig, sandbox.id, State.LOST)
    assert refused == 3


async def test_a_disk_that_cannot_be_asked_is_short_and_keeps_its_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reserve"
    kept = Reserve(path, 1 << 20)
    await kept.make()
    assert kept.has_room(1)
    assert not kept.has_room(1 << 60)

    def fail(*_args: object) -> None:
        raise OSError(30, "read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        await kept.release()
    assert path.exists()
    monkeypatch.setattr(reserve, "free_bytes", fail)
    assert kept.is_short()
    assert not kept.has_room(0)
