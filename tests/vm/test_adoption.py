"""A VM goes on under another server than the one that started it, wherever that one was interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.disks.qcow2 import create_overlay
from aenv.errors import RuntimeFailure
from aenv.runtimes.qemu import adoption, compaction, monitor
from aenv.runtimes.qemu.instance import QemuInstance
from tests.vm.support import DISK_MIB, Lab, Prepared

pytestmark = pytest.mark.vm


async def running(lab: Lab, instance: QemuInstance) -> None:
    """The server was killed at no special moment."""


async def about_to_capture(lab: Lab, instance: QemuInstance) -> None:
    """The guest stands still, and the next overlay is open."""
    await instance.prepare()
    await instance.freeze()


async def with_devices_saved(lab: Lab, instance: QemuInstance) -> None:
    """In the middle of a capture."""
    await instance.freeze()
    await instance._save_devices(lab.new_folder() / "device-state")


async def with_a_capture_unrecorded(lab: Lab, instance: QemuInstance) -> None:
    """The disk is sealed, and the files of the capture will be removed."""
    capture = await lab.capture(instance)
    for layer in capture.layers[-1:]:
        layer.path.unlink()


async def with_an_overlay_unopened(lab: Lab, instance: QemuInstance) -> None:
    """The file of the next overlay is there, and QEMU has not heard of it."""
    create_overlay(instance._disk._new_name().path, DISK_MIB << 20)


async def with_a_merge_half_done(lab: Lab, instance: QemuInstance) -> None:
    """The file that the disk was about to stand on is there, and QEMU has not heard of it."""
    assert await instance._disk.merge(instance._workshop)


async def with_overlays_merged(lab: Lab, instance: QemuInstance) -> None:
    """The disk stands on a merged overlay."""
    assert await instance.compact()


INTERRUPTIONS = [
    pytest.param(running, marks=pytest.mark.long),
    about_to_capture,
    pytest.param(with_devices_saved, marks=pytest.mark.long),
    with_a_capture_unrecorded,
    pytest.param(with_an_overlay_unopened, marks=pytest.mark.long),
    pytest.param(with_a_merge_half_done, marks=pytest.mark.long),
    with_overlays_merged,
]


async def abandon(lab: Lab, instance: QemuInstance) -> None:
    """What is left of an instance once its server was killed."""
    await instance._process.monitor.close()
    lab.forget(instance)


async def adopted(lab: Lab, instance: QemuInstance) -> QemuInstance:
    """The instance as another server finds it, running."""
    await abandon(lab, instance)
    place = await lab.runtime.find(instance.place.folder)
    assert place == instance.place
    again = await lab.runtime.adopt(place)
    lab.own(again)
    await again.thaw()
    return again


def overlays(instance: QemuInstance) -> list[str]:
    """The overlays in an instance's folder."""
    return sorted(path.name for path in instance.place.folder.glob("disk-*"))


@pytest.mark.parametrize("interrupt", INTERRUPTIONS)
async def test_a_restored_vm_goes_on(
    lab: Lab,
    prepared: Prepared,
    interrupt: Callable[[Lab, QemuInstance], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "MAX_OVERLAYS", 1)
    instance = await lab.restore(prepared.captures[2])
    await instance.thaw()
    memory = await lab.ask(instance, "POST", "/fill?mib=4")
    for number in range(2):  # a chain of several overlays, two of them of its own
        await lab.ask(instance, "PUT", f"/file/{number}", f"{number}".encode() * 50_000)
        await lab.capture(instance)
        await instance.thaw()
    await lab.ask(instance, "PUT", "/file/2", b"2" * 50_000)
    await interrupt(lab, instance)

    again = await adopted(lab, instance)
    known = (*again._disk.sealed, again._disk._top.path)
    assert overlays(again) == sorted(path.name for path in known)
    assert await lab.ask(again, "GET", "/memory") == memory
    await lab.ask(again, "PUT", "/file/3", b"3" * 50_000)
    child = await lab.restore(await lab.capture(again))
    await again.thaw()
    await child.thaw()
    for one in (again, child):
        assert await lab.ask(one, "GET", "/memory") == memory
        for number in range(4):
            assert await lab.ask(one, "GET", f"/file/{number}") == f"{number}".encode() * 50_000
    await instance.stop()


@pytest.mark.long
async def test_a_booted_vm_goes_on(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.boot(prepared.image, 1)
    await lab.ask(instance, "PUT", "/file/one", b"1" * 50_000)
    again = await adopted(lab, instance)
    capture = await lab.capture(again)
    assert {layer.role for layer in capture.layers} == {
        "memory-base",
        "device-state",
        "disk-base",
        "disk-overlay",
    }
    child = await lab.restore(capture)
    await child.thaw()
    assert await lab.ask(child, "GET", "/file/one") == b"1" * 50_000
    await instance.stop()


async def test_a_vm_that_was_left_goes_on(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    memory = await lab.ask(instance, "POST", "/fill?mib=1")
    await instance.leave()
    lab.forget(instance)
    again = await lab.runtime.adopt(await lab.runtime.find(instance.place.folder))
    lab.own(again)
    assert await lab.ask(again, "GET", "/memory") == memory
    await lab.end(again)
    await asyncio.to_thread(os.waitpid, again.pid, 0)  # still this process's child


async def test_a_vm_whose_captures_could_not_be_restored_is_ended(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    adoption.describe(instance.place, replace(lab.runtime.identity, version="1.0"), instance.resources)
    with pytest.raises(RuntimeFailure, match="can't be restored"):
        await adopted(lab, instance)
    assert "signal 15" in await asyncio.wait_for(instance.ended, 10)
    await instance.stop()
    await lab.pool.release(instance.place.slot)


async def test_a_vm_that_does_not_answer_is_ended(
    lab: Lab, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await lab.restore(prepared.captures[1])
    os.kill(instance.pid, signal.SIGSTOP)
    monkeypatch.setattr(monitor, "_CONNECT_TIMEOUT", 0.5)
    with pytest.raises(RuntimeFailure, match="didn't answer"):
        await adopted(lab, instance)
    assert "SIGKILL" in await asyncio.wait_for(instance.ended, 10)
    await instance.stop()
    await lab.pool.release(instance.place.slot)


async def test_an_undescribed_vm_is_not_found(lab: Lab, prepared: Prepared) -> None:
    bare = await lab.spawn(prepared.captures[1])
    with pytest.raises(RuntimeFailure, match=f"{adoption.DESCRIPTION} can't be read"):
        await lab.runtime.find(bare.place.folder)
    with pytest.raises(RuntimeFailure, match="can't be read"):
        await lab.runtime.find(Path("/nonexistent"))
