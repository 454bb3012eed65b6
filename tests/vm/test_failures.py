"""What goes wrong is said clearly, ends nothing that could go on, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.errors import InvalidRequest, NoSpace, RuntimeFailure, VmmUnresponsive
from aenv.runtimes.base import BootSpec, Capture, Layer, Resources
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import QemuLayers
from aenv.runtimes.qemu.process import VmProcess
from tests.small_disk import small_disk
from tests.vm.support import Lab, Prepared

pytestmark = pytest.mark.vm


async def with_delta(lab: Lab, prepared: Prepared) -> Capture:
    """A capture that has every kind of layer."""
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "GET", "/count")
    capture = await lab.capture(instance)
    await lab.end(instance)
    return capture


def changed(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file's content."""
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def cut(content: bytearray) -> None:
    del content[-5000:]


def flip(at: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[at] ^= 1

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "instead of"),
        (flip(9), "is damaged"),
        (flip(40), "checksum of its header"),
        (flip(5000), "checksum of its data"),
        (flip(-2), "checksum of its index"),
        (bytearray.clear, "is damaged"),
    ],
)
async def test_a_damaged_delta_is_refused(
    lab: Lab, prepared: Prepared, change: Callable[[bytearray], None], words: str
) -> None:
    capture = await with_delta(lab, prepared)
    delta = QemuLayers.of(capture).memory_delta
    assert delta is not None
    changed(delta, change)
    vmm = await lab.spawn(capture)
    with pytest.raises(RuntimeFailure, match=words) as failure:
        await vmm.load(capture)
    assert str(delta) in str(failure.value)
    assert vmm.ended.done()


async def test_each_missing_layer_is_named(lab: Lab, prepared: Prepared) -> None:
    capture = await with_delta(lab, prepared)
    for missing in capture.layers[1:]:
        vmm = await lab.spawn(capture)
        layers = tuple(
            replace(layer, path=Path("/nonexistent/x")) if layer is missing else layer
            for layer in capture.layers
        )
        with pytest.raises(RuntimeFailure, match=f"{missing.role} is missing: /nonexistent/x"):
            await vmm.load(replace(capture, layers=layers))
    base = capture.layers[0]
    layers = (replace(base, path=Path("/nonexistent/x")), *capture.layers[1:])
    with pytest.raises(RuntimeFailure, match="/nonexistent/x"):
        await lab.spawn(replace(capture, layers=layers))
    with pytest.raises(RuntimeFailure, match="no layer disk-base"):
        lab.runtime.key(replace(capture, layers=capture.layers[:3]))
    with pytest.raises(RuntimeFailure, match="unknown here: other"):
        lab.runtime.key(replace(capture, layers=(*capture.layers, Layer("other", Path("/x")))))


async def test_a_damaged_device_state_is_refused(lab: Lab, prepared: Prepared) -> None:
    capture = await with_delta(lab, prepared)
    changed(QemuLayers.of(capture).device_state, lambda content: content.__delitem__(slice(-2000, None)))
    vmm = await lab.spawn(capture)
    with pytest.raises(RuntimeFailure, match=r"QEMU (ended|refused)"):
        await vmm.load(capture)


async def test_other_identities_and_other_bases_are_refused(lab: Lab, prepared: Prepared) -> None:
    capture = prepared.captures[1]
    for identity in (
        replace(capture.identity, version="1.0"),
        replace(capture.identity, cpu="tcg/max/tsc=1000"),
    ):
        with pytest.raises(RuntimeFailure, match="can't be restored"):
            await lab.runtime.spawn(replace(capture, identity=identity), await lab.place())
    vmm = await lab.spawn(capture)
    with pytest.raises(RuntimeFailure, match="its base or its size differs"):
        await vmm.load(prepared.captures[2])
    with pytest.raises(RuntimeFailure, match="has been used"):
        await vmm.load(capture)


async def test_a_newer_guest_kernel_strands_no_capture(lab: Lab, prepared: Prepared) -> None:
    identity = replace(prepared.captures[1].identity, kernel="another")
    instance = await lab.restore(replace(prepared.captures[1], identity=identity))
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/count")


async def test_a_nearly_equal_tsc_is_the_same_identity(lab: Lab, prepared: Prepared) -> None:
    name, separator, frequency = prepared.captures[1].identity.cpu.rpartition("tsc=")
    if not separator:
        pytest.skip("KVM presents its own time stamp counter")
    identity = replace(prepared.captures[1].identity, cpu=f"{name}tsc={int(frequency) + 3}")
    lab.runtime.key(replace(prepared.captures[1], identity=identity))


async def test_a_capture_needs_a_frozen_instance(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    with pytest.raises(RuntimeFailure, match="frozen"):
        await instance.capture(lab.new_folder())
    assert await lab.ask(instance, "GET", "/count")


async def test_what_a_hung_vmm_was_told_to_do_is_undone(
    lab: Lab, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    memory = await lab.ask(instance, "GET", "/memory")
    os.kill(instance.pid, signal.SIGSTOP)
    with monkeypatch.context() as hasty:
        hasty.setattr("aenv.runtimes.qemu.monitor._COMMAND_TIMEOUT", 0.2)
        for told in (instance.freeze, instance.thaw):
            with pytest.raises(VmmUnresponsive):
                await told()
    os.kill(instance.pid, signal.SIGCONT)
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/memory") == memory, "it stands still"
    await lab.capture(instance)


async def test_a_hung_vmm_that_seals_its_disk_late_can_be_captured_again(
    lab: Lab, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
    await instance.prepare()
    await instance.freeze()
    os.kill(instance.pid, signal.SIGSTOP)
    with monkeypatch.context() as hasty:
        hasty.setattr("aenv.runtimes.qemu.monitor._COMMAND_TIMEOUT", 0.2)
        with pytest.raises(VmmUnresponsive):
            await instance.capture(tmp_path, memory=False)
    os.kill(instance.pid, signal.SIGCONT)
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/two", b"2" * 100_000)
    capture = await lab.capture(instance)
    await lab.end(instance)
    again = await lab.restore(capture)
    await again.thaw()
    assert await lab.ask(again, "GET", "/file/one") == b"1" * 100_000
    assert await lab.ask(again, "GET", "/file/two") == b"2" * 100_000


async def test_an_instance_goes_on_after_a_capture_onto_a_full_disk(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    memory = await lab.ask(instance, "POST", "/fill?mib=12")
    await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
    await instance.freeze()
    with small_disk(lab.folder / "small", 4) as folder:
        for _ in range(2):
            with pytest.raises(NoSpace, match="disk is full"):
                await instance.capture(folder)
            for file in folder.iterdir():
                file.unlink()
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/memory") == memory
    await lab.ask(instance, "PUT", "/file/two", b"2" * 100_000)
    capture = await lab.capture(instance)
    again = await lab.restore(capture)
    await again.thaw()
    assert await lab.ask(again, "GET", "/memory") == memory
    assert await lab.ask(again, "GET", "/file/one") == b"1" * 100_000
    assert await lab.ask(again, "GET", "/file/two") == b"2" * 100_000


async def test_captures_may_lie_on_another_file_system(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/one", b"1" * 100_000)
    await instance.freeze()
    with small_disk(lab.folder / "elsewhere", 100) as folder:
        again = await lab.restore(await instance.capture(folder))
        await again.thaw()
        assert await lab.ask(again, "GET", "/file/one") == b"1" * 100_000
        await lab.end(again)


async def test_a_killed_vmm_is_noticed_in_every_state(lab: Lab, prepared: Prepared) -> None:
    capture = prepared.captures[1]
    bare = await lab.spawn(capture)
    os.kill(bare._process.pid, signal.SIGKILL)
    assert "SIGKILL" in await asyncio.wait_for(bare.ended, 5)
    with pytest.raises(RuntimeFailure, match="SIGKILL"):
        await bare.load(capture)

    async def killed(instance: QemuInstance) -> None:
        os.kill(instance.pid, signal.SIGKILL)
        assert "SIGKILL" in await asyncio.wait_for(instance.ended, 5)
        await instance.prepare()  # what it can't do is left to the capture
        for step in (instance.freeze(), instance.thaw(), instance.capture(lab.new_folder())):
            with pytest.raises(RuntimeFailure, match="SIGKILL"):
                await step
        await instance.stop()

    await killed(await lab.restore(capture))
    running = await lab.restore(capture)
    await running.thaw()
    await killed(running)


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02])
async def test_a_vmm_killed_during_a_load_or_a_capture(lab: Lab, prepared: Prepared, delay: float) -> None:
    async def kill(pid: int) -> None:
        await asyncio.sleep(delay)
        os.kill(pid, signal.SIGKILL)

    vmm = await lab.spawn(prepared.captures[1])
    killing = asyncio.create_task(kill(vmm._process.pid))
    results = await asyncio.gather(vmm.load(prepared.captures[1]), return_exceptions=True)
    await killing
    assert isinstance(results[0], RuntimeFailure | QemuInstance)
    assert "SIGKILL" in await asyncio.wait_for(vmm.ended, 5) or isinstance(results[0], RuntimeFailure)

    instance = await lab.restore(prepared.captures[1])
    killing = asyncio.create_task(kill(instance.pid))
    outcome = await asyncio.gather(instance.capture(lab.new_folder()), return_exceptions=True)
    await killing
    assert isinstance(outcome[0], RuntimeFailure | Capture)
    assert "SIGKILL" in await asyncio.wait_for(instance.ended, 5)


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.02, 0.03])
async def test_cancellation_leaves_nothing_and_breaks_nothing(
    lab: Lab, prepared: Prepared, delay: float
) -> None:
    capture = prepared.captures[1]
    place = await lab.place()

    async def start() -> None:
        vmm = await lab.runtime.spawn(capture, place)
        try:
            instance = await vmm.load(capture)
            await instance.stop()
        finally:
            await vmm.stop()

    with contextlib.suppress(TimeoutError):  # a quick host may be done by then
        await asyncio.wait_for(start(), delay)

    instance = await lab.restore(capture)
    await instance.thaw()
    await lab.ask(instance, "PUT", "/file/kept", b"k" * 50_000)
    await instance.freeze()
    abandoned = lab.new_folder()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(instance.capture(abandoned), min(delay, 0.01) / 2)
    for file in abandoned.iterdir():
        file.unlink()
    await instance.thaw()
    assert await lab.ask(instance, "GET", "/file/kept") == b"k" * 50_000
    again = await lab.restore(await lab.capture(instance))
    await again.thaw()
    assert await lab.ask(again, "GET", "/file/kept") == b"k" * 50_000


async def test_a_guest_that_panics_has_ended(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    panic = asyncio.create_task(lab.ask(instance, "POST", "/panic"))
    assert "crashed" in await asyncio.wait_for(instance.ended, 30)
    panic.cancel()
    await asyncio.gather(panic, return_exceptions=True)


async def test_an_image_larger_than_the_disk_is_refused(lab: Lab, prepared: Prepared) -> None:
    with pytest.raises(InvalidRequest, match="larger than a disk of 512 MiB"):
        await lab.runtime.boot(BootSpec(prepared.image, Resources(1, 192, 512)), await lab.place())


async def test_a_vmm_that_does_not_end_is_killed(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.restore(prepared.captures[1])
    os.kill(instance.pid, signal.SIGSTOP)
    started = time.monotonic()
    await instance.stop()
    assert time.monotonic() - started < 5
    await instance.stop()


async def test_qemu_says_why_it_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match=r"didn't start.*unsupported machine"):
        await VmProcess.start(["qemu-system-x86_64", "-machine", "nonsense"], tmp_path, ())
