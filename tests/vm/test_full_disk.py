"""The host's disk is full: the guest waits, hears nothing of it, and is whole afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator

import pytest

from aenv.errors import NoSpace, StorageFailure
from aenv.runtimes.base import Place
from aenv.runtimes.qemu.instance import QemuInstance
from tests.small_disk import read_only, resize, small_disk
from tests.vm.support import Lab, Prepared

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]


@pytest.fixture
async def stalled(lab: Lab, prepared: Prepared) -> AsyncIterator[QemuInstance]:
    """A VM that writes files and has found its disk full; its folder is the small file system."""
    capture = prepared.captures[1]
    with small_disk(lab.folder / "small", 3) as folder:
        place = Place(await lab.pool.acquire(), folder)
        instance = await (await lab.runtime.spawn(capture, place)).load(capture)
        try:
            await instance.thaw()
            writing = asyncio.create_task(lab.ask(instance, "POST", "/traffic"))
            await asyncio.wait_for(instance.no_space.wait(), 60)
            await asyncio.gather(writing, return_exceptions=True)
            yield instance
        finally:
            await instance.stop()
            await lab.pool.release(place.slot)


async def _goes_on(lab: Lab, instance: QemuInstance) -> None:
    """It runs, writes more, and all that it wrote is right."""
    before = written = (await lab.ask(instance, "GET", "/report")).split()[0]
    while written == before:
        written = (await lab.ask(instance, "GET", "/report")).split()[0]
    assert int(await lab.ask(instance, "POST", "/verify")) >= 1


async def test_the_guest_goes_on_when_there_is_room(lab: Lab, stalled: QemuInstance) -> None:
    assert not stalled.ended.done()
    await stalled.thaw()
    await asyncio.wait_for(stalled.no_space.wait(), 60)  # there is no more room than before
    resize(stalled.place.folder, 100)
    await stalled.thaw()
    await _goes_on(lab, stalled)
    assert not stalled.no_space.is_set()


async def test_a_guest_that_waits_can_be_captured(lab: Lab, stalled: QemuInstance) -> None:
    await stalled.freeze()
    with pytest.raises(NoSpace, match="disk is full"):  # the next overlay has no room either
        await stalled.capture(lab.new_folder())
    resize(stalled.place.folder, 4)
    capture = await stalled.capture(lab.new_folder())
    again = await lab.restore(capture)
    await again.thaw()
    await _goes_on(lab, again)
    resize(stalled.place.folder, 100)
    await stalled.thaw()
    await _goes_on(lab, stalled)


async def test_captures_on_a_disk_that_cannot_be_written(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
    await instance.freeze()
    with small_disk(lab.folder / "small", 1) as folder:
        with read_only(folder), pytest.raises(StorageFailure, match="read-only"):
            await instance.capture(folder)
        with pytest.raises(NoSpace, match="make room"):
            await instance.capture(folder)
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/file/one") == b"1" * 100_000
    again = await lab.restore(await lab.capture(instance))
    await again.thaw()
    assert await lab.ask(again, "GET", "/file/one") == b"1" * 100_000


@pytest.mark.parametrize("thaw", [False, True])
async def test_captures_that_find_no_room_leave_the_disk_as_it_is(
    lab: Lab, prepared: Prepared, thaw: bool
) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    content = os.urandom(1_000_000)
    for number in range(16):
        await lab.ask(instance, "PUT", f"/file/{number}", bytes([number]) + content)
    with small_disk(lab.folder / "small", 8) as folder:
        for attempt in range(3):
            await instance.freeze()
            into = folder / str(attempt)
            into.mkdir()
            with pytest.raises(NoSpace, match="make room"):
                await instance.capture(into, thaw=thaw)
            assert (into / "memory-delta").exists(), "there was room for all but the memory"
            shutil.rmtree(into)
    assert instance._disk.sealed == ()
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/file/15") == bytes([15]) + content
