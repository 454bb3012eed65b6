"""What the host has, as the kernel and the control groups say it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aenv import host

MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nHugePages_Total: 0\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_this_host() -> None:
    memory = host.memory()
    assert 0 < memory.available <= memory.total
    assert host.cpus() >= 1


def test_a_host_without_limits(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO})
    assert host.memory(tmp_path) == host.HostMemory(1000 << 10, 600 << 10)


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_of_a_group_above_counts(tmp_path: Path, version: int) -> None:
    group, names, total = (
        ("sys/fs/cgroup/memory/outer", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_")
        if version == 1
        else ("sys/fs/cgroup/outer", ("memory.max", "memory.current"), "")
    )
    controllers = "3:cpu,cpuacct:/other\n4:memory:/outer/inner\n" if version == 1 else "0::/outer/inner\n"
    stat = f"anon 5\n{total}inactive_file 4096\n{total}active_file 8192\n"
    inner = {f"{group}/inner/{names[0]}": "max" if version == 2 else "9223372036854771712"}
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": controllers,
            f"{group}/{names[0]}": "409600\n",
            f"{group}/{names[1]}": "307200\n",
            f"{group}/memory.stat": stat,
            f"{group}/inner/{names[1]}": "1000\n",
            f"{group}/inner/memory.stat": stat,
            **inner,
        },
    )
    assert host.memory(tmp_path) == host.HostMemory(409600, 409600 - 307200 + 12288)


def test_memory_of_a_process_is_its_own_or_of_files(tmp_path: Path) -> None:
    size = 64 << 20
    before = host.memory_of(os.getpid())
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(b"\1" * size)
        grown = host.memory_of(os.getpid())
        assert grown.private - before.private > size * 0.9
    file = tmp_path / "file"
    file.write_bytes(b"\1" * size)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == size // mmap.PAGESIZE
        assert host.memory_of(os.getpid()).shared - before.shared > size * 0.9


def test_a_process_that_has_ended_holds_nothing() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    assert host.memory_of(child) == host.MemoryUse()


@pytest.mark.skipif(not host.may_renice(), reason="needs CAP_SYS_NICE")
def test_a_process_in_the_background_and_back() -> None:
    program = "import threading; threading.Thread(target=input).start(); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        threads = [int(each.name) for each in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 2
        group = Path(f"/proc/{child.pid}/autogroup")
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        for background in (True, False):
            host.set_background(child.pid, background)
            wanted = max(ours, host.BACKGROUND) if background else ours
            assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {wanted}
            if group.exists():
                assert group.read_text().split()[-1] == str(host.BACKGROUND if background else 0)
        child.kill()
    host.set_background(child.pid, background=True)  # it has ended
