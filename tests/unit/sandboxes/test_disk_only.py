"""Pauses and snapshots of the disk alone, and reboots: what survives, what doesn't, and who is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.errors import Conflict, PauseRefused, ResumeRefused, RuntimeFailure, SandboxNotFound
from aenv.guest.errors import Code, GuestError
from aenv.node import Node
from aenv.runtimes.base import BootSpec, Instance, Place
from aenv.sandboxes import capturing
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from aenv.telemetry import service as telemetry
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings


async def _filled(rig: Rig, **changes: object) -> Sandbox:
    """A sandbox with one value in memory and one on its way to the disk."""
    sandbox = await rig.create(env={"X": "1"}, **changes)
    await rig.put(sandbox.id, "value", 1)
    await rig.put(sandbox.id, "value", 2, "disk")
    return sandbox


async def _values(rig: Rig, sandbox_id: str) -> tuple[object, object]:
    return await rig.read(sandbox_id, "value"), await rig.read(sandbox_id, "value", "disk")


async def _deafen(rig: Rig, sandbox_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "FREEZE_TIMEOUT", 0.1)
    monkeypatch.setattr(telemetry, "GUEST_SECONDS", 0.1)
    (await rig.instance(sandbox_id)).guest.responsive.clear()


async def test_a_disk_survives_whole_and_memory_does_not(rig: Rig) -> None:
    sandbox = await _filled(rig)
    boot_id = await rig.read(sandbox.id, "boot_id")
    for _ in range(3):
        await rig.node.sandboxes.pause(sandbox.id, memory=False)
        paused = await rig.node.sandboxes.get(sandbox.id)
        assert (paused.state, paused.pause_mode) == (State.PAUSED, "filesystem")
        assert not paused.envd_unresponsive_at_pause
        assert sandbox.id not in rig.node.starter.stopped._machines
        capture = await rig.node.captures.get(paused.capture_id)
        assert [layer.role for layer in capture.layers] == ["disk"]
        resumed, did_resume = await rig.node.sandboxes.connect(sandbox.id, 60)
        assert did_resume
        assert await _values(rig, sandbox.id) == (None, 2)
        last_boot, boot_id = boot_id, await rig.read(sandbox.id, "boot_id")
        assert boot_id != last_boot
        identity = (await rig.instance(sandbox.id)).guest.identity
        assert identity["envVars"] == {"X": "1"}
        assert identity["hostname"] == sandbox.id
        assert identity["accessToken"] == sandbox.envd_token == resumed.envd_token


async def test_a_reboot_uses_the_disk_of_a_whole_capture_as_it_is(rig: Rig) -> None:
    sandbox = await _filled(rig)
    await rig.node.sandboxes.snapshot(sandbox.id, memory=False)  # which writes the first value to the disk
    await rig.put(sandbox.id, "late", 3, "disk")
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60, memory=False)
    assert await _values(rig, sandbox.id) == (None, 2)
    assert await rig.read(sandbox.id, "late", "disk") is None  # as after a power cut
    assert len(rig.runtime.instances) - rig.node.starter.hot.count() == 1  # the paused VM was given up

    await rig.node.sandboxes.pause(sandbox.id)
    assert (await rig.node.sandboxes.get(sandbox.id)).pause_mode == "full"
    resumed = await rig.node.sandboxes.resume(sandbox.id, 60, memory=True)
    assert resumed.state is State.RUNNING


async def test_a_reboot_of_what_runs_changes_nothing(rig: Rig) -> None:
    sandbox = await _filled(rig)
    _, did_resume = await rig.node.sandboxes.connect(sandbox.id, 60, memory=False)
    assert not did_resume
    assert await _values(rig, sandbox.id) == (1, 2)
    with pytest.raises(Conflict):
        await rig.node.sandboxes.resume(sandbox.id, 60, memory=False)


async def test_a_rebooted_sandbox_can_do_all_that_others_can(rig: Rig) -> None:
    sandbox = await _filled(rig)
    await rig.node.sandboxes.pause(sandbox.id, memory=False)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.put(sandbox.id, "value", 4)
    (child,) = await rig.node.sandboxes.fork(sandbox.id, 1)
    assert isinstance(child, Sandbox)
    assert await _values(rig, child.id) == (4, 2)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await _values(rig, sandbox.id) == (4, 2)


async def test_a_snapshot_of_the_disk_is_a_template_and_its_source_goes_on(rig: Rig) -> None:
    source = await _filled(rig)
    before = (await rig.node.sandboxes.get(source.id)).capture_id
    await rig.node.sandboxes.snapshot(source.id, "disk", memory=False)
    assert await _values(rig, source.id) == (1, 2)
    assert await rig.read(source.id, "frozen") is False
    # The layers of its memory are those of the capture before.
    assert (await rig.node.sandboxes.get(source.id)).capture_id == before
    await rig.node.sandboxes.pause(source.id)
    await rig.node.sandboxes.connect(source.id, 60)
    assert await _values(rig, source.id) == (1, 2)
    await rig.node.sandboxes.kill(source.id)
    for _ in range(3):
        copy = await rig.create(template="disk")
        assert await _values(rig, copy.id) == (None, 2)
    capture_id = (await rig.node.sandboxes.get(copy.id)).capture_id
    assert capture_id not in rig.node.starter.hot._by_key  # what can't be restored needs no hot VMs


async def test_the_deadline_keeps_what_was_asked_for(rig: Rig) -> None:
    sandbox = await _filled(rig, timeout=0.3, auto_pause_memory=False)

    async def paused() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED

    await eventually(paused)
    assert (await rig.node.sandboxes.get(sandbox.id)).pause_mode == "filesystem"
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await _values(rig, sandbox.id) == (None, 2)


async def test_traffic_does_not_reboot(rig: Rig) -> None:
    sandbox = await _filled(rig, auto_resume=True)
    await rig.node.sandboxes.pause(sandbox.id, memory=False)
    with pytest.raises(SandboxNotFound):
        await rig.node.sandboxes.endpoint(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.endpoint(sandbox.id)


async def test_pauses_of_two_kinds_do_not_join(rig: Rig) -> None:
    sandbox = await _filled(rig)
    pause = rig.node.sandboxes.pause
    guest = (await rig.instance(sandbox.id)).guest
    guest.responsive.clear()
    first = asyncio.create_task(pause(sandbox.id, memory=False))

    async def under_way() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSING

    await eventually(under_way)
    second, third = (asyncio.create_task(pause(sandbox.id, memory=memory)) for memory in (False, True))
    await asyncio.sleep(0)
    guest.responsive.set()
    await asyncio.gather(first, second)
    with pytest.raises(Conflict):
        await third
    assert (await rig.node.sandboxes.get(sandbox.id)).pause_mode == "filesystem"


@pytest.mark.parametrize(("memory", "strict"), [(False, False), (True, True)])
async def test_what_needs_a_healthy_guest_is_refused_without(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, memory: bool, strict: bool
) -> None:
    sandbox = await _filled(rig)
    guest = (await rig.instance(sandbox.id)).guest
    await _deafen(rig, sandbox.id, monkeypatch)
    with pytest.raises(PauseRefused, match="not ready in"):
        await rig.node.sandboxes.pause(sandbox.id, memory=memory, require_healthy_guest=strict)
    with pytest.raises(PauseRefused):
        await rig.node.sandboxes.snapshot(sandbox.id, memory=memory)
    with pytest.raises(PauseRefused):
        await rig.node.sandboxes.fork(sandbox.id, 1)
    guest.responsive.set()
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING
    assert await _values(rig, sandbox.id) == (1, 2)


async def test_a_memory_with_an_unresponsive_agent_is_kept_but_only_the_disk_comes_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await _filled(rig, auto_resume=True)
    await _deafen(rig, sandbox.id, monkeypatch)
    await rig.node.sandboxes.pause(sandbox.id)
    assert (await rig.node.sandboxes.get(sandbox.id)).envd_unresponsive_at_pause
    with pytest.raises(SandboxNotFound):
        await rig.node.sandboxes.endpoint(sandbox.id)
    with pytest.raises(ResumeRefused):
        await rig.node.sandboxes.connect(sandbox.id, 60)
    with pytest.raises(ResumeRefused):
        await rig.node.sandboxes.resume(sandbox.id, 60)
    resumed, _ = await rig.node.sandboxes.connect(sandbox.id, 60, memory=False)
    assert not resumed.envd_unresponsive_at_pause
    assert await _values(rig, sandbox.id) == (None, None)


async def test_a_deadline_keeps_the_disk_of_an_unresponsive_guest_as_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await _filled(rig, timeout=0.5, auto_pause_memory=False)
    await _deafen(rig, sandbox.id, monkeypatch)

    async def paused() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED

    await eventually(paused)
    found = await rig.node.sandboxes.get(sandbox.id)
    assert (found.pause_mode, found.envd_unresponsive_at_pause) == ("filesystem", True)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await _values(rig, sandbox.id) == (None, None)  # nothing was flushed


async def test_a_failed_boot_leaves_the_sandbox_paused(rig: Rig) -> None:
    sandbox = await _filled(rig)
    await rig.node.sandboxes.pause(sandbox.id, memory=False)
    rig.runtime.order_failure("boot", RuntimeFailure("no"))
    with pytest.raises(RuntimeFailure, match="no"):
        await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await _values(rig, sandbox.id) == (None, 2)


async def test_a_vm_that_ends_while_it_boots_is_noticed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await _filled(rig)
    await rig.node.sandboxes.pause(sandbox.id, memory=False)
    boot = rig.runtime.boot

    async def panicking(spec: BootSpec, place: Place) -> Instance:
        instance = await boot(spec, place)
        rig.runtime.instances[place.folder.name].die("the guest panicked")
        return instance

    with monkeypatch.context() as patch:
        patch.setattr(rig.runtime, "boot", panicking)
        with pytest.raises(RuntimeFailure, match="the guest panicked"):
            await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await _values(rig, sandbox.id) == (None, 2)


async def test_processes_that_do_not_stop_at_once_are_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await _filled(rig)
    machine = rig.node.sandboxes._core.live.machine(sandbox.id)
    assert machine is not None
    freeze, refusals = machine.guest.freeze, [GuestError(Code.INTERNAL, "a long write")]

    async def reluctant() -> None:
        if refusals:
            raise refusals.pop()
        await freeze()

    monkeypatch.setattr(machine.guest, "freeze", reluctant)
    await rig.node.sandboxes.pause(sandbox.id, require_healthy_guest=True)
    assert not refusals
    assert not (await rig.node.sandboxes.get(sandbox.id)).envd_unresponsive_at_pause


async def test_a_failed_capture_lets_the_guest_go_on(rig: Rig) -> None:
    sandbox = await _filled(rig)
    rig.runtime.order_failure("capture", RuntimeFailure("no"))
    with pytest.raises(RuntimeFailure, match="no"):
        await rig.node.sandboxes.pause(sandbox.id, memory=False)
    assert await _values(rig, sandbox.id) == (1, 2)
    assert await rig.read(sandbox.id, "frozen") is False


async def test_the_disk_outlives_the_server(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "home")
    node = Node(settings)
    await node.start()
    rig = Rig(node, settings)
    sandbox = await _filled(rig)
    await node.sandboxes.pause(sandbox.id, memory=False)
    await node.stop()
    again = Rig(Node(settings), settings)
    await again.node.start()
    try:
        await again.node.sandboxes.connect(sandbox.id, 60)
        assert await _values(again, sandbox.id) == (None, 2)
    finally:
        await again.node.stop()
