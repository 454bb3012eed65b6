"""What this host has, and what of it is left: memory and CPUs.

Limits of the control groups that the server is in count as the host's: its VMMs are in the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BACKGROUND: Final = 10
"""The niceness of what shall not be in the way: a tenth of the CPU, so that it ends on a busy host too."""

_ROOT: Final = Path("/")
_CAP_SYS_NICE: Final = 23  # linux/capability.h
_STATM_RESIDENT, _STATM_FILE = 1, 2  # fields of /proc/PID/statm, in pages (Linux, proc_pid_statm(5))


@dataclass(frozen=True)
class HostMemory:
    """Bytes."""

    total: int
    available: int
    """What new processes can get without swapping; files in the page cache make room, so they don't count."""


@dataclass(frozen=True)
class MemoryUse:
    """What a process holds of the host's memory, in bytes."""

    private: int = 0
    """Its own: free again when it ends."""
    shared: int = 0
    """Pages of files, which all processes that map them have in common."""


def memory(root: Path = _ROOT) -> HostMemory:
    """The host's memory, or the control groups' where that is less. Blocks for less than a millisecond."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    fields = {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3}
    total, available = fields["MemTotal:"], fields["MemAvailable:"]
    for limit, used in _cgroups(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return HostMemory(total, available)


def cpus() -> int:
    """How many CPUs this process, and so its VMMs, may use."""
    return len(os.sched_getaffinity(0))


def memory_of(pid: int) -> MemoryUse:
    """What a process holds; nothing if it has ended. Costs microseconds, however much it holds."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return MemoryUse()
    page = os.sysconf("SC_PAGE_SIZE")
    resident, of_files = int(words[_STATM_RESIDENT]) * page, int(words[_STATM_FILE]) * page
    return MemoryUse(max(0, resident - of_files), of_files)


def may_renice() -> bool:
    """Whether this process can give processes a lower priority and their old one back (CAP_SYS_NICE)."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> _CAP_SYS_NICE & 1)


def set_background(pid: int, background: bool) -> None:
    """Let a process have little of the CPU while others want it, or again as much as this one. Blocking.

    Niceness counts per thread, and only within the process's session where the kernel groups processes by
    session (sched(7), "The autogroup feature"), so the session's is set too. A process that has ended is left
    alone. Raises PermissionError unless `may_renice`.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if background:
        nice = max(nice, BACKGROUND)
    with suppress(FileNotFoundError, ProcessLookupError):
        for _ in range(2):  # threads that others made meanwhile have what these had
            for thread in sorted(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()):
                with suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text(str(BACKGROUND if background else 0))


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group around this process that has a limit, in bytes.

    Both generations (Linux, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). A path that isn't there
    belongs to a hierarchy outside of this container.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, reclaimable = ("memory.max", "memory.current"), ("inactive_file", "active_file")
            tops = [mounts, mounts / "unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            reclaimable, tops = ("total_inactive_file", "total_active_file"), [mounts / "memory"]
        else:
            continue
        for top in tops:
            folder = top / path.lstrip("/")
            for each in (folder, *folder.parents):
                yield from _limit(each, names, reclaimable)
                if each == top:
                    break


def _limit(folder: Path, names: tuple[str, str], reclaimable: tuple[str, str]) -> Iterator[tuple[int, int]]:
    try:
        limit, used = ((folder / name).read_text().strip() for name in names)
        stat = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        files = sum(int(words[1]) for words in stat if words[0] in reclaimable)
    except OSError:
        return
    if limit != "max":
        yield int(limit), max(0, int(used) - files)
