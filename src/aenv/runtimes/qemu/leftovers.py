"""QEMU processes that outlived the server that started them.

Each VM's folder holds a record of its process: its id, its start time and the boot of the host, so that
another process that got the same id later is never taken for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from pathlib import Path
from typing import Final

RECORD: Final = "vmm.json"
_END: Final = 10.0  # seconds for a killed process to be gone
_START_TIME: Final = 22 - 3  # field 22 of /proc/PID/stat, counted after the name in parentheses


def record(folder: Path, pid: int) -> None:
    """Write the record of `pid` into `folder`; it appears whole or not at all. Raises OSError."""
    content = {"pid": pid, "start_time": _start_time(pid), "boot": _boot_id()}
    temporary = folder / f"{RECORD}.new"
    temporary.write_text(json.dumps(content))
    temporary.rename(folder / RECORD)


async def end_leftovers(workspace: Path) -> int:
    """Kill every VM recorded in a folder of `workspace`, wait until each is gone; returns how many lived."""
    return await asyncio.to_thread(_end_leftovers, workspace)


def _end_leftovers(workspace: Path) -> int:
    count = 0
    for file in sorted(workspace.glob(f"*/{RECORD}")):
        count += _end(file)
        file.unlink(missing_ok=True)
    return count


def _end(file: Path) -> bool:
    try:
        content = json.loads(file.read_text())
        pid, start_time, boot = int(content["pid"]), int(content["start_time"]), content["boot"]
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no such process, or a record cut short by the crash of the host
    try:
        # The descriptor now holds the process, so what is checked is what is killed.
        if boot != _boot_id() or _start_time(pid) != start_time:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(_END * 1000)
    except (OSError, ValueError):
        return False  # it ended meanwhile
    else:
        return True
    finally:
        os.close(descriptor)


def _start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot. Raises OSError if there is no such process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
