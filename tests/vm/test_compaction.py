"""However often a VM is captured, its disk stands on few files, and every capture stays what it was."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient
from aenv.runtimes.base import Capture
from aenv.runtimes.qemu import compaction
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import DiskLayers, QemuLayers
from tests.vm.support import Lab, Prepared

pytestmark = pytest.mark.vm


@pytest.fixture(autouse=True)
def few_overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens after dozens of captures happens after some."""
    monkeypatch.setattr(compaction, "MAX_OVERLAYS", 3)


@pytest.fixture
async def instance(lab: Lab, prepared: Prepared) -> QemuInstance:
    """A running VM."""
    return await _started(lab, prepared.captures[1])


async def _started(lab: Lab, capture: Capture) -> QemuInstance:
    """A running VM in the state of a capture."""
    instance = await lab.restore(capture)
    await instance.thaw()
    return instance


def _content(number: int) -> bytes:
    return f"{number}\n".encode() * 20_000


async def _put(lab: Lab, instance: QemuInstance, number: int) -> None:
    await lab.ask(instance, "PUT", f"/file/f{number}", _content(number))
    await lab.ask(instance, "PUT", "/file/same", _content(number))
    async with EnvdClient(f"http://{instance.place.slot.host_address}:49983", user="root") as envd:
        await envd.sync(timeout=50)
        await envd.unfreeze()


async def _capture(lab: Lab, instance: QemuInstance) -> Capture:
    await instance.freeze()
    return await instance.capture(lab.new_folder(), thaw=True)


async def _rounds(lab: Lab, instance: QemuInstance, count: int) -> list[Capture]:
    """Write files and capture, that many times."""
    captures = []
    for number in range(count):
        await _put(lab, instance, number)
        captures.append(await _capture(lab, instance))
    return captures


async def _check(lab: Lab, instance: QemuInstance, count: int) -> None:
    """The files of `count` rounds are there."""
    for number in range(count):
        assert await lab.ask(instance, "GET", f"/file/f{number}") == _content(number)
    assert await lab.ask(instance, "GET", "/file/same") == _content(count - 1)


def _overlays(capture: Capture) -> int:
    return len(DiskLayers.of(capture).overlays)


def _open_overlays(instance: QemuInstance) -> set[str]:
    files = Path(f"/proc/{instance.pid}/fd").iterdir()
    return {name for file in files if (name := str(file.readlink())).endswith(".qcow2")}


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_vm_that_is_captured_again_and_again(
    lab: Lab, prepared: Prepared, instance: QemuInstance
) -> None:
    memory = await lab.ask(instance, "POST", "/fill?mib=4&seed=9")
    captures = []
    for number in range(12):
        await _put(lab, instance, number)
        captures.append(await _capture(lab, instance))
        await instance.compact()
        assert len(_open_overlays(instance)) <= 3 + 2  # the one written to, and perhaps the one prepared
    assert not await instance.compact()
    assert max(map(_overlays, captures)) <= 4 + _overlays(prepared.captures[1])
    assert len(list(instance.place.folder.glob("*.qcow2"))) <= 3 + 2
    await _check(lab, instance, 12)
    await lab.end(instance)
    for count in (3, 5, 12):
        again = await _started(lab, captures[count - 1])
        assert await lab.ask(again, "GET", "/memory") == memory
        await _check(lab, again, count)
        await lab.end(again)
    booted = await lab.boot(captures[-1], 1)  # all is read from the disk, with no cache before it
    await _check(lab, booted, 12)
    inherited = await _capture(lab, booted)
    assert _overlays(inherited) <= 5


@pytest.mark.timeout(300)
async def test_captures_during_a_merge(lab: Lab, instance: QemuInstance) -> None:
    await _rounds(lab, instance, 5)
    merged = await instance._disk.merge(instance._workshop)
    assert merged is not None
    await _put(lab, instance, 5)
    await _capture(lab, instance)
    await _put(lab, instance, 6)
    during = await _capture(lab, instance)
    await instance._exchange(merged)
    await _put(lab, instance, 7)
    after = await _capture(lab, instance)
    assert _overlays(after) < _overlays(during)
    assert await instance.compact()  # overlays of both kinds are merged once more
    await _put(lab, instance, 8)
    last = await _capture(lab, instance)
    await instance.freeze()
    await instance.compact()
    await instance.thaw()
    await _check(lab, instance, 9)
    for capture, count in ((during, 7), (after, 8), (last, 9)):
        again = await _started(lab, capture)
        await _check(lab, again, count)
        await lab.end(again)


async def test_a_merge_that_fails_or_is_stopped_changes_nothing(
    lab: Lab, instance: QemuInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = (await _rounds(lab, instance, 5))[-1]
    files = set(instance.place.folder.iterdir())

    stopping = asyncio.create_task(instance.compact())
    await asyncio.sleep(0)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping
    assert set(instance.place.folder.iterdir()) == files

    merged = await instance._disk.merge(instance._workshop)
    assert merged is not None
    merged.overlay.path.write_bytes(b"no overlay")
    with pytest.raises(RuntimeFailure, match="QEMU refused blockdev-add"):
        await instance._exchange(merged)
    assert set(instance.place.folder.iterdir()) == files
    await _put(lab, instance, 5)
    await _check(lab, instance, 6)

    again = await _started(lab, capture)
    await _check(lab, again, 5)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_capture_of_a_paused_sandbox(lab: Lab, instance: QemuInstance) -> None:
    await _rounds(lab, instance, 5)
    memory = await lab.ask(instance, "POST", "/fill?mib=80&seed=9")
    await _put(lab, instance, 5)
    capture = await lab.capture(instance)
    await lab.end(instance)

    assert await lab.runtime.is_wasteful(capture, kept=False)
    contents = {layer: layer.path.read_bytes() for layer in capture.layers[1:]}
    tight = await lab.runtime.compact(capture, lab.new_folder())
    assert not await lab.runtime.is_wasteful(tight, kept=False)
    assert {layer: layer.path.read_bytes() for layer in capture.layers[1:]} == contents
    layers = QemuLayers.of(tight)
    assert layers.memory_delta is None
    assert len(layers.disk.overlays) < len(DiskLayers.of(capture).overlays)
    assert layers.disk.base == DiskLayers.of(capture).base  # the root file system stays the one of all

    for each in (tight, capture):
        again = await _started(lab, each)
        assert await lab.ask(again, "GET", "/memory") == memory
        await _check(lab, again, 6)
        second = await lab.capture(again)
        await lab.end(again)
        again = await _started(lab, second)
        assert await lab.ask(again, "GET", "/memory") == memory
        await lab.end(again)


async def test_a_compaction_says_what_is_damaged(lab: Lab, instance: QemuInstance) -> None:
    capture = (await _rounds(lab, instance, 5))[-1]
    overlay = DiskLayers.of(capture).overlays[-1]
    overlay.write_bytes(overlay.read_bytes()[:100_000])
    folder = lab.new_folder()
    with pytest.raises(RuntimeFailure, match=r"disk overlay .* is damaged"):
        await lab.runtime.compact(capture, folder)
    missing = replace(capture, layers=tuple(each for each in capture.layers if each.path != overlay))
    overlay.unlink()
    with pytest.raises(RuntimeFailure, match="No such file"):
        await lab.runtime.is_wasteful(capture, kept=False)
    assert await lab.runtime.is_wasteful(missing, kept=False)
    assert not list(folder.iterdir())
