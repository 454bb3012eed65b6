"""What one caller sees of a sandbox's life."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from aenv.errors import (
    Conflict,
    InvalidRequest,
    PauseRefused,
    RuntimeFailure,
    SandboxNotFound,
    SandboxNotRunning,
    TemplateNotFound,
)
from aenv.network.base import Slot
from aenv.runtimes.base import Capture
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually


async def test_a_new_sandbox_runs_and_knows_who_it_is(rig: Rig) -> None:
    sandbox = await rig.create(metadata={"a": "b"}, env={"X": "1"})
    assert sandbox.state is State.RUNNING
    assert sandbox.metadata == {"a": "b"}
    identity = (await rig.instance(sandbox.id)).guest.identity
    assert identity["sandboxId"] == sandbox.id
    assert identity["accessToken"] == sandbox.envd_token
    assert identity["envVars"] == {"X": "1"}
    assert identity["entropy"]


async def test_memory_survives_pause_and_resume_many_times(rig: Rig) -> None:
    sandbox = await rig.create()
    for count in range(5):
        await rig.put(sandbox.id, "counter", count)
        await rig.node.sandboxes.pause(sandbox.id)
        assert (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED
        resumed, did_resume = await rig.node.sandboxes.connect(sandbox.id, 60)
        assert did_resume
        assert resumed.state is State.RUNNING
        assert await rig.read(sandbox.id, "counter") == count


async def test_forks_share_the_past_and_not_the_future(rig: Rig) -> None:
    parent = await rig.create(metadata={"kept": "yes"})
    await rig.put(parent.id, "value", "before")
    children = await rig.node.sandboxes.fork(parent.id, 4)
    ids = set()
    for number, child in enumerate(children):
        assert isinstance(child, Sandbox)
        ids.add(child.id)
        assert child.metadata == {"kept": "yes"}
        assert child.envd_token != parent.envd_token
        assert await rig.read(child.id, "value") == "before"
        await rig.put(child.id, "value", number)
    assert len(ids) == 4
    assert await rig.read(parent.id, "value") == "before"
    assert [await rig.read(child.id, "value") for child in children if isinstance(child, Sandbox)] == [
        0,
        1,
        2,
        3,
    ]


async def test_a_snapshot_outlives_its_source(rig: Rig) -> None:
    source = await rig.create()
    await rig.put(source.id, "value", 7)
    snapshot = await rig.node.sandboxes.snapshot(source.id, "seven")
    await rig.node.sandboxes.kill(source.id)
    for name in (snapshot.snapshot_id, snapshot.id, "seven", "seven:default"):
        copy = await rig.create(template=name)
        assert await rig.read(copy.id, "value") == 7


async def test_a_snapshot_name_can_be_repointed(rig: Rig) -> None:
    source = await rig.create()
    await rig.put(source.id, "value", 1)
    first = await rig.node.sandboxes.snapshot(source.id, "name")
    await rig.put(source.id, "value", 2)
    second = await rig.node.sandboxes.snapshot(source.id, "name")
    assert first.id == second.id
    assert first.build.id != second.build.id
    assert await rig.read((await rig.create(template="name")).id, "value") == 2


async def test_a_snapshot_can_be_repointed_by_its_id_and_keeps_its_name(rig: Rig) -> None:
    source = await rig.create()
    first = await rig.node.sandboxes.snapshot(source.id, "name")
    second = await rig.node.sandboxes.snapshot(source.id, first.id)
    assert (second.id, second.name) == (first.id, "name")


async def test_a_template_name_is_safe_from_snapshots(rig: Rig) -> None:
    source = await rig.create()
    with pytest.raises(InvalidRequest, match="belongs to a template"):
        await rig.node.sandboxes.snapshot(source.id, "base")
    assert len(list(rig.settings.captures_dir.iterdir())) == 1
    assert (await rig.node.sandboxes.get(source.id)).state is State.RUNNING
    assert await rig.read(source.id, "frozen") is False


async def test_a_kill_answers_when_the_vm_is_gone_and_its_slot_is_given_back_wiped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    folder, slot = instance.place.folder, instance.place.slot
    release, wiped = rig.network.release, asyncio.Event()

    async def release_late(slot: Slot) -> None:
        await wiped.wait()
        await release(slot)

    monkeypatch.setattr(rig.network, "release", release_late)
    await rig.node.sandboxes.kill(sandbox.id)
    assert instance.ended.done()
    assert slot.index in rig.network.in_use  # nobody else gets it yet
    with pytest.raises(SandboxNotFound):
        await rig.node.sandboxes.get(sandbox.id)
    wiped.set()
    await rig.node.sandboxes._core.tasks.drain()
    assert slot.index not in rig.network.in_use
    assert not folder.exists()


async def test_killed_sandboxes_are_gone_and_leave_nothing(rig: Rig) -> None:
    running, paused = await rig.create(), await rig.create()
    await rig.node.sandboxes.pause(paused.id)
    for sandbox in (running, paused):
        await rig.node.sandboxes.kill(sandbox.id)
        with pytest.raises(SandboxNotFound):
            await rig.node.sandboxes.get(sandbox.id)
        with pytest.raises(SandboxNotFound):
            await rig.node.sandboxes.kill(sandbox.id)

    async def only_base_is_left() -> bool:
        return len(list(rig.settings.captures_dir.iterdir())) == 1

    await eventually(only_base_is_left)


async def test_a_sandbox_may_be_deleted_while_its_capture_is_made_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captures, killed = rig.node.captures, asyncio.Event()
    sync = captures.sync

    async def late(capture: Capture) -> None:
        await killed.wait()
        await sync(capture)

    monkeypatch.setattr(captures, "sync", late)
    paused = await rig.create()
    await rig.node.sandboxes.pause(paused.id)
    await rig.node.sandboxes.kill(paused.id)
    killed.set()
    await rig.node.sandboxes._core.tasks.drain()
    assert len(list(rig.settings.captures_dir.iterdir())) == 1  # the base template's
    assert "durable" not in capsys.readouterr().out


async def test_wrong_states_and_names_are_clear_errors(rig: Rig) -> None:
    sandboxes = rig.node.sandboxes
    with pytest.raises(TemplateNotFound, match="no-such"):
        await rig.create(template="no-such")
    with pytest.raises(TemplateNotFound, match="base:v2"):
        await rig.create(template="base:v2")
    for bad in (0, -1, 10**9):
        with pytest.raises(InvalidRequest, match="timeout"):
            await rig.create(timeout=bad)
    sandbox = await rig.create()
    with pytest.raises(Conflict):
        await sandboxes.resume(sandbox.id, 60)
    for count in (0, -1, rig.settings.max_fork + 1):
        with pytest.raises(InvalidRequest, match="count"):
            await sandboxes.fork(sandbox.id, count)
    with pytest.raises(InvalidRequest, match="name"):
        await sandboxes.snapshot(sandbox.id, "no/slash")
    await sandboxes.pause(sandbox.id)
    with pytest.raises(Conflict, match="paused"):
        await sandboxes.pause(sandbox.id)
    with pytest.raises(Conflict):
        await sandboxes.fork(sandbox.id, 1)
    for refused in (
        sandboxes.snapshot(sandbox.id),
        sandboxes.set_timeout(sandbox.id, 5),
        sandboxes.refresh(sandbox.id, 5),
    ):
        with pytest.raises(SandboxNotRunning, match="resume it first"):
            await refused
    for odd in ("", "../x", "ä", "i" * 500, "I00000000000000000000", "a b", "%2F"):
        with pytest.raises(SandboxNotFound):
            await sandboxes.get(odd)


async def test_traffic_reaches_running_sandboxes_and_wakes_those_that_allow_it(rig: Rig) -> None:
    quiet, woken = await rig.create(), await rig.create(auto_resume=True)
    assert rig.node.sandboxes.live_endpoint(quiet.id) is not None
    for sandbox in (quiet, woken):
        endpoint = await rig.node.sandboxes.endpoint(sandbox.id)
        await rig.node.sandboxes.pause(sandbox.id)
        assert endpoint.gone.is_set()
        assert rig.node.sandboxes.live_endpoint(sandbox.id) is None
    with pytest.raises(SandboxNotFound):
        await rig.node.sandboxes.endpoint(quiet.id)
    assert not (await rig.node.sandboxes.endpoint(woken.id)).gone.is_set()
    assert (await rig.node.sandboxes.get(woken.id)).end_at > time.time() + 200


async def test_deleting_a_template_in_use_is_refused(rig: Rig) -> None:
    source = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(source.id)
    user = await rig.create(template=snapshot.id)
    with pytest.raises(InvalidRequest, match="in use"):
        await rig.node.templates.delete(snapshot.snapshot_id)
    await rig.node.sandboxes.kill(user.id)
    await rig.node.templates.delete(snapshot.snapshot_id)
    with pytest.raises(TemplateNotFound):
        await rig.node.templates.find(snapshot.id)


async def test_a_failed_capture_leaves_the_sandbox_running(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    for operation in (
        lambda: rig.node.sandboxes.pause(sandbox.id),
        lambda: rig.node.sandboxes.snapshot(sandbox.id),
        lambda: rig.node.sandboxes.fork(sandbox.id, 2),
    ):
        rig.runtime.order_failure("capture", RuntimeFailure("the disk is full"))
        with pytest.raises(RuntimeFailure, match="disk is full"):
            await operation()
        assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING
        assert await rig.read(sandbox.id, "value") == 1
        assert await rig.read(sandbox.id, "frozen") is False


async def test_a_failed_resume_leaves_the_sandbox_paused(rig: Rig, tmp_path: Path) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    await rig.node.sandboxes.pause(sandbox.id)
    # Two failures: one for the VM that may still be in memory, one for the restore from disk.
    for operation in ("thaw", "thaw") if rig.settings.stopped_vms else ("load",):
        rig.runtime.order_failure(operation, RuntimeFailure("no"))
    with pytest.raises(RuntimeFailure):
        await rig.node.sandboxes.connect(sandbox.id, 60)
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_failed_create_leaves_no_record(rig: Rig) -> None:
    await rig.pools_are_filled()
    while rig.node.starter.hot.count():
        await rig.create()
    before = len(rig.runtime.instances)
    rig.runtime.order_failure("load", RuntimeFailure("no memory"))
    with pytest.raises(RuntimeFailure, match="no memory"):
        await rig.create()
    assert len(rig.runtime.instances) == before


async def test_a_dead_vm_makes_the_sandbox_lost(rig: Rig) -> None:
    sandbox = await rig.create()
    (await rig.instance(sandbox.id)).die("the VMM was killed")

    async def is_gone() -> bool:
        try:
            await rig.node.sandboxes.get(sandbox.id)
        except SandboxNotFound:
            return True
        return False

    await eventually(is_gone)
    assert rig.node.sandboxes.live_endpoint(sandbox.id) is None


async def test_a_layer_that_was_cut_short_is_refused(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    await rig.node.sandboxes.pause(sandbox.id)
    record = await rig.node.sandboxes.get(sandbox.id)
    stopped = rig.node.starter.stopped.remove(sandbox.id)
    if stopped is not None:
        await rig.node.sandboxes._core.machines.destroy(stopped)
    capture = await rig.node.captures.get(record.capture_id)
    layer = capture.layers[-1].path
    whole = layer.read_bytes()
    layer.write_bytes(whole[:-1])
    with pytest.raises(RuntimeFailure, match="damaged"):
        await rig.node.sandboxes.connect(sandbox.id, 60)
    layer.write_bytes(whole)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_lost_sandbox_keeps_no_files(rig: Rig) -> None:
    def captures() -> set[str]:
        return {path.name for path in rig.settings.captures_dir.iterdir()}

    before = captures()
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert captures() > before
    (await rig.instance(sandbox.id)).die("the VMM was killed")

    async def are_gone() -> bool:
        return captures() == before

    await eventually(are_gone)


async def test_a_stopped_vm_that_died_is_restored_from_disk(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 3)
    instance = await rig.instance(sandbox.id)
    await rig.node.sandboxes.pause(sandbox.id)
    instance.die("killed while paused")
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 3


async def test_an_unresponsive_guest_is_paused_all_the_same_unless_health_is_required(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.sandboxes.capturing.FREEZE_TIMEOUT", 0.1)
    sandbox = await rig.create()
    guest = (await rig.instance(sandbox.id)).guest
    guest.responsive.clear()
    with pytest.raises(PauseRefused, match="guest agent"):
        await rig.node.sandboxes.pause(sandbox.id, require_healthy_guest=True)
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING
    await rig.node.sandboxes.pause(sandbox.id)
    paused = await rig.node.sandboxes.get(sandbox.id)
    assert paused.state is State.PAUSED
    assert paused.envd_unresponsive_at_pause
    guest.responsive.set()
