"""The host's disk fails, and is not merely full: the guest is told, as by real hardware, and may go on."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.errors import AenvError, StorageFailure
from aenv.runtimes.base import Place
from aenv.runtimes.qemu.instance import QemuInstance
from tests.small_disk import break_off, loop_disk
from tests.vm.support import Lab, Prepared

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]


@pytest.fixture
async def broken(lab: Lab, prepared: Prepared) -> AsyncIterator[QemuInstance]:
    """A VM that writes files, and whose folder's device has just gone."""
    with loop_disk(lab.folder / "broken", 200) as folder:
        place = Place(await lab.pool.acquire(), folder)
        instance = await (await lab.runtime.spawn(prepared.captures[1], place)).load(prepared.captures[1])
        try:
            await instance.thaw()
            await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
            await lab.ask(instance, "POST", "/traffic")
            break_off(folder)
            yield instance
        finally:
            await instance.stop()
            await lab.pool.release(place.slot)


async def _verify_for_long(lab: Lab, instance: QemuInstance) -> None:
    """What the guest wrote before may still be in the host's memory; it goes on writing."""
    async with asyncio.timeout(60):
        while True:
            await lab.ask(instance, "POST", "/verify")


async def _lives(lab: Lab, instance: QemuInstance) -> None:
    """Its processes run, and nobody thinks that it waits for room."""
    before = count = await lab.ask(instance, "GET", "/count")
    while count == before:
        count = await lab.ask(instance, "GET", "/count")
    assert not instance.ended.done()
    assert not instance.no_space.is_set()


async def test_the_guest_is_told_and_lives_on(
    lab: Lab, broken: QemuInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match=r"isn't what was written|/data/.*(input/output|read-only)"):
        await _verify_for_long(lab, broken)
    await _lives(lab, broken)
    assert capsys.readouterr().out.count("the guest was told") == 1  # though there are many such errors


async def test_a_capture_says_what_is_wrong_and_the_vm_goes_on(lab: Lab, broken: QemuInstance) -> None:
    for thaw in (False, True):
        await broken.freeze()
        with pytest.raises(StorageFailure, match="Input/output error"):
            await broken.capture(lab.new_folder(), thaw=thaw)
        await broken.thaw()
        await _lives(lab, broken)


async def test_captures_to_a_disk_that_fails_leave_the_vm_as_it_is(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
    await instance.freeze()
    with loop_disk(lab.folder / "broken", 20) as folder:
        break_off(folder)
        with pytest.raises(StorageFailure, match="Input/output error"):
            await instance.capture(folder)
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/file/one") == b"1" * 100_000
    again = await lab.restore(await lab.capture(instance))
    await again.thaw()
    assert await lab.ask(again, "GET", "/file/one") == b"1" * 100_000


async def test_what_cannot_be_read_cannot_be_started_and_leaves_nothing(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    capture = await lab.capture(instance)
    with loop_disk(lab.folder / "broken", 200) as folder:
        own = {layer.path for layer in capture.layers} - {each.path for each in prepared.captures[1].layers}

        def there(path: Path) -> Path:
            return Path(shutil.copy(path, folder)) if path in own else path

        layers = tuple(dataclasses.replace(layer, path=there(layer.path)) for layer in capture.layers)
        vmm = await lab.spawn(capture)
        break_off(folder)
        with pytest.raises(AenvError, match="Input/output error"):
            await vmm.load(dataclasses.replace(capture, layers=layers))
        assert vmm.ended.done()
        await lab.end(vmm)
    await instance.thaw()
    await _lives(lab, instance)
