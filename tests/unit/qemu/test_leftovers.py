"""VMs of a server that died are ended, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.runtimes.qemu import leftovers


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


async def test_a_recorded_process_is_killed_once(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    leftovers.record(folder, sleeper.pid)
    assert await leftovers.end_leftovers(tmp_path) == 1
    assert sleeper.wait(5) == -9
    assert list(folder.iterdir()) == []
    assert await leftovers.end_leftovers(tmp_path) == 0


@pytest.mark.parametrize(
    "change", [{"start_time": 1}, {"boot": "another"}, {"pid": 2**22 - 1}, {"pid": "?"}, {}]
)
async def test_a_process_that_only_has_the_id_is_spared(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    leftovers.record(folder, sleeper.pid)
    record = folder / leftovers.RECORD
    if change:
        record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    else:
        record.write_text('{"pid": 1')
    assert await leftovers.end_leftovers(tmp_path) == 0
    assert sleeper.poll() is None


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
    process = Path(f"/proc/{died.stdout.strip()}")
    assert process.exists()
    assert asyncio.run(leftovers.end_leftovers(tmp_path)) == 1
    assert not process.exists() or "Z" in (process / "stat").read_text().rpartition(")")[2]
