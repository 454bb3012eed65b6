"""Captures of the disk alone, and boots from the disk of a capture."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient
from aenv.runtimes.base import Capture
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import DiskLayers
from tests.vm.support import Lab, Prepared

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@asynccontextmanager
async def _agent(instance: QemuInstance) -> AsyncIterator[EnvdClient]:
    async with EnvdClient(f"http://{instance.place.slot.host_address}:49983", user="root") as envd:
        yield envd


async def _read(instance: QemuInstance, path: str) -> bytes:
    async with _agent(instance) as envd:
        return b"".join([piece async for piece in envd.files.read(path)])


async def _synced(lab: Lab, instance: QemuInstance) -> Capture:
    async with _agent(instance) as envd:
        await envd.sync()
        await instance.freeze()
        try:
            return await instance.capture(lab.new_folder(), thaw=True, memory=False)
        finally:
            await envd.unfreeze()


async def _check(capture: Capture, folder: Path) -> subprocess.CompletedProcess[str]:
    """Put the chain together as other tools see it, and let e2fsck look for anything to mend."""
    layers = DiskLayers.of(capture)
    node: dict[str, object] = {"driver": "raw", "file": {"driver": "file", "filename": str(layers.base)}}
    for overlay in layers.overlays:
        node = {"driver": "qcow2", "file": {"driver": "file", "filename": str(overlay)}, "backing": node}
    disk = folder / "disk.raw"

    def run() -> subprocess.CompletedProcess[str]:
        subprocess.run(
            ["qemu-img", "convert", "-U", "-O", "raw", "json:" + json.dumps(node), disk], check=True
        )
        return subprocess.run(["e2fsck", "-fn", disk], capture_output=True, text=True, check=False)

    return await asyncio.to_thread(run)


async def test_a_synced_disk_is_clean_and_boots(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[2])
    await instance.thaw()
    boot_id = await _read(instance, BOOT_ID)
    for generation in range(2):
        for number in range(20):
            await lab.ask(instance, "PUT", f"/file/{generation}-{number}", bytes([number]) * 100_000)
        capture = await _synced(lab, instance)
        assert not capture.memory
        assert {layer.role for layer in capture.layers} == {"disk-base", "disk-overlay"}
        checked = await _check(capture, lab.new_folder())
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "recovery" not in checked.stdout + checked.stderr

        # What was captured goes on undisturbed, the frozen disk too.
        assert int(await lab.ask(instance, "GET", "/count")) > 0
        await lab.ask(instance, "PUT", "/file/later", b"later")
        assert await _read(instance, BOOT_ID) == boot_id
        await lab.end(instance)

        instance = await lab.boot(capture, 2)
        last_boot, boot_id = boot_id, await _read(instance, BOOT_ID)
        assert boot_id != last_boot
        for number in range(20):
            assert await lab.ask(instance, "GET", f"/file/{generation}-{number}") == bytes([number]) * 100_000
        async with _agent(instance) as envd:
            assert await envd.files.exists("/data/later") is None

    # A booted VM can be captured whole, again and again, and be restored.
    for _ in range(2):
        memory = await lab.ask(instance, "POST", "/fill?mib=4")
        capture = await lab.capture(instance)
        await instance.thaw()
        await lab.ask(instance, "PUT", "/file/later", b"later")
        copy = await lab.restore(capture)
        await copy.thaw()
        assert await lab.ask(copy, "GET", "/memory") == memory
        assert await _read(copy, BOOT_ID) == boot_id
        assert await lab.ask(copy, "GET", "/file/1-19") == bytes([19]) * 100_000
        await lab.end(copy)


@pytest.mark.long
async def test_the_disk_of_a_whole_capture_boots_as_after_a_power_cut(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/old", b"on the disk")
    async with _agent(instance) as envd:
        await envd.sync()
        await envd.unfreeze()
    writing = asyncio.create_task(lab.ask(instance, "PUT", "/file/new", bytes(1_000_000)))
    await asyncio.sleep(0.05)  # no state to wait for: anywhere in the middle will do
    capture = await lab.capture(instance)
    await instance.thaw()
    await writing
    await lab.end(instance)
    rebooted = await lab.boot(capture, 1)
    assert await lab.ask(rebooted, "GET", "/file/old") == b"on the disk"


async def test_a_disk_alone_cannot_be_restored(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.freeze()
    capture = await instance.capture(lab.new_folder(), memory=False)
    with pytest.raises(RuntimeFailure, match="booted, not restored"):
        await lab.spawn(capture)
