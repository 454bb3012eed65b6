"""The bare engine reads what the server writes, and finds what a process changed."""

from __future__ import annotations

import os
from pathlib import Path

from aenv.bench import bare
from aenv.bench.bare import Capture, Machine, Vm
from aenv.bench.reference import engine_files
from aenv.memory.live import MemoryCopy, save_memory
from aenv.memory.pages import PAGE_SIZE
from aenv.runtimes.base import Capture as ServersCapture
from aenv.runtimes.base import Layer, Resources, RuntimeIdentity
from tests.unit.memory.test_pages import Mapped


def _changed(base: Path) -> Mapped:
    """A mapping with scattered changes, more ranges than one call takes, and some pages that became zero."""
    mapping = Mapped(base, 5000)
    for number in range(0, 5000, 2):
        mapping.write(number)
    mapping.memory[PAGE_SIZE * 6 : PAGE_SIZE * 9] = bytes(3 * PAGE_SIZE)
    return mapping


def test_it_loads_a_delta_of_the_server(tmp_path: Path) -> None:
    source = _changed(tmp_path / "base")
    copy = save_memory(os.getpid(), source.path, source.size, tmp_path / "delta")
    assert isinstance(copy, MemoryCopy)
    copy.save(tmp_path / "delta")
    expected = bytes(source.memory)
    source.close()
    target = Mapped(tmp_path / "base", None)
    bare.load_memory(os.getpid(), Capture(str(target.path), str(tmp_path / "delta"), "", []))
    assert bytes(target.memory) == expected
    target.close()


def test_it_finds_every_page_that_was_changed(tmp_path: Path) -> None:
    source = _changed(tmp_path / "base")
    numbers, pages = bare.changed_pages(os.getpid(), str(source.path), source.size)
    assert set(numbers.tolist()) == {*range(0, 5000, 2), 7}
    memory = bytes(source.memory)
    expected = b"".join(memory[number * PAGE_SIZE : (number + 1) * PAGE_SIZE] for number in numbers)
    assert pages.tobytes() == expected
    source.close()


def test_nothing_changed_is_nothing_copied(tmp_path: Path) -> None:
    source = Mapped(tmp_path / "base", 16)
    numbers, pages = bare.changed_pages(os.getpid(), str(source.path), source.size)
    assert (len(numbers), len(pages)) == (0, 0)
    source.close()


def test_its_vm_has_the_devices_of_the_servers(tmp_path: Path) -> None:
    """In the server's order: a device state names the place of each device."""
    machine = Machine(str(tmp_path / "base"), "tcg", "max", 2, 512, 1024, str(tmp_path))
    command = Vm.command(machine, tap=7, monitor=8)
    devices = [command[index + 1] for index, word in enumerate(command) if word == "-device"]
    assert [device.partition(",")[0] for device in devices] == ["virtio-blk-device", "virtio-net-device"]


def test_the_layers_of_a_capture_become_files_of_the_engine() -> None:
    roles = ["memory-base", "memory-delta", "device-state", "disk-base", "disk-overlay", "disk-overlay"]
    layers = tuple(Layer(role, Path(f"/c/{number}")) for number, role in enumerate(roles))
    identity = RuntimeIdentity("qemu", "7.2", "tcg/max/tsc=1", "kernel")
    files = engine_files(ServersCapture(identity, Resources(2, 512, 1024), layers), "/folder")
    assert files["capture"] == {
        "base": "/c/0",
        "delta": "/c/1",
        "state": "/c/2",
        "disk": ["/c/3", "/c/4", "/c/5"],
    }
    machine = Machine(**files["machine"])
    assert (machine.base, machine.cpu, machine.cpus, machine.folder) == ("/c/0", "max", 2, "/folder")
    assert machine.accel.startswith("tcg,")
