"""VMs of a server that died are found or ended, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from aenv.errors import HostNotReady, RuntimeFailure
from aenv.images.bundle import GuestBundle
from aenv.network.base import Slot
from aenv.runtimes.base import Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu import adoption, leftovers
from aenv.runtimes.qemu.command import Machine
from aenv.runtimes.qemu.process import VmProcess
from aenv.runtimes.qemu.runtime import QemuRuntime


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that look like the VMM of a folder."""
    processes = []

    def start(folder: Path, program: str = "qemu-system-x86_64") -> subprocess.Popen[bytes]:
        folder.mkdir(exist_ok=True)
        command = [program, "-c", "import time; time.sleep(60)", *leftovers.name_arguments(folder)]
        process = subprocess.Popen(command, executable=sys.executable)
        processes.append(process)
        leftovers.record(folder, process.pid)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


Start = Callable[..., "subprocess.Popen[bytes]"]


def test_strays_are_ended_whatever_is_recorded_of_them(tmp_path: Path, start: Start) -> None:
    recorded, unrecorded, kept = (start(tmp_path / name) for name in ("a", "b,c", "kept"))
    (tmp_path / "b,c" / leftovers.RECORD).unlink()
    assert leftovers.end_strays(tmp_path, {tmp_path / "kept"}) == 2
    assert [recorded.wait(5), unrecorded.wait(5)] == [-9, -9]
    assert kept.poll() is None
    assert leftovers.end_strays(tmp_path, {tmp_path / "kept"}) == 0


def test_what_only_looks_like_a_stray_is_spared(tmp_path: Path, start: Start) -> None:
    workspace = tmp_path / "workspace"
    spared = [start(tmp_path / "elsewhere"), start(workspace), start(workspace / "search", "find")]
    assert leftovers.end_strays(workspace, ()) == 0
    assert [process.poll() for process in spared] == [None, None, None]


@pytest.mark.parametrize(
    ("asked", "ours", "theirs"),
    [
        ("auto", "tcg/max/tsc=1", "kvm/host/1"),
        ("auto", "kvm/host/1", "tcg/max/tsc=1"),
        ("tcg", "tcg/max/tsc=1", "kvm/host/1"),
        ("kvm", "kvm/host/1", "tcg/max/tsc=1"),
    ],
)
async def test_a_vm_of_another_accelerator_is_given_up_only_if_that_was_asked_for(
    tmp_path: Path, start: Start, asked: Literal["auto", "kvm", "tcg"], ours: str, theirs: str
) -> None:
    process = start(folder := tmp_path / "vm")
    slot = Slot(1, "namespace", "tap", "192.0.2.1", "02:00:00:00:00:01", "02:00:00:00:00:02")
    place = Place(slot, folder)
    adoption.describe(place, RuntimeIdentity("qemu", "7.2", theirs, "kernel"), Resources(1, 512, 1024))
    bundle = GuestBundle(tmp_path, tmp_path, "6.1", "kernel")
    machine = Machine("qemu-system-x86_64", ours[:3], "host", 32, None, None, bundle)
    identity = RuntimeIdentity("qemu", "7.2", ours, "kernel")
    runtime = QemuRuntime(machine, identity, lambda _slot: -1, asked=asked)
    if asked == "auto":
        with pytest.raises(HostNotReady, match="left as they are"):
            await runtime.find(folder)
    else:
        assert await runtime.find(folder) == place  # its adoption will end it
    assert process.poll() is None
    await runtime.close()


def _found(folder: Path, **changes: object) -> int:
    """The process that is found in `folder` if its record is changed so."""
    file = folder / leftovers.RECORD
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    pid, descriptor = leftovers.open_process(folder)
    os.close(descriptor)
    return pid


def test_a_living_vmm_is_found(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path)
    assert _found(tmp_path) == process.pid
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    with pytest.raises(RuntimeFailure, match="ended while no server watched it"):
        _found(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_time": 1}, "ended while no server watched it"),
        ({"pid": 2**22 - 1}, "ended while no server watched it"),
        ({"boot": "another"}, "host was restarted"),
        ({"pid": "?"}, "can't be read"),
    ],
)
def test_a_process_that_only_has_the_id_is_not_taken_for_it(
    tmp_path: Path, start: Start, changes: dict[str, object], words: str
) -> None:
    start(tmp_path)
    with pytest.raises(RuntimeFailure, match=words):
        _found(tmp_path, **changes)


def test_a_vmm_outlives_its_server_and_is_then_found(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    server = f"""
import asyncio, os, signal
from pathlib import Path
from aenv.runtimes.qemu.process import VmProcess
async def main():
    vm = await VmProcess.start(["qemu-system-x86_64", "-M", "none", "-nodefaults", "-display", "none"],
                               Path({str(folder)!r}), ())
    print(vm.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    died = subprocess.run([sys.executable, "-c", server], check=False, stdout=subprocess.PIPE, text=True)
    assert died.returncode == -9
    pid = int(died.stdout)
    assert _found(folder) == pid

    async def ended_for(reason: str) -> None:
        adopted = await VmProcess.adopt(folder)
        await adopted.execute("query-status")
        os.kill(pid, signal.SIGTERM)
        assert reason in await asyncio.wait_for(adopted.ended, 10)
        await adopted.stop()

    asyncio.run(ended_for("terminating on signal 15"))
    assert leftovers.end_strays(tmp_path, ()) == 0
