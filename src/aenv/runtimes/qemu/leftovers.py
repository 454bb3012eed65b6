"""QEMU processes that outlived the server that started them.

Each VMM has its folder for a name (`-name`), so all of a workspace are found by their command lines, from the
moment they exist. A VMM's folder also holds a record of its process: its id, its start time and the boot of
the host, so that what became of it can be told, and another process that got the same id later is never taken
for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final

from aenv.durable import write_whole
from aenv.errors import RuntimeFailure

RECORD: Final = "vmm.json"
_PROGRAM: Final = "qemu-system-"
_NAME: Final = b"-name"
_END: Final = 10.0  # seconds for a killed process to be gone
_START_TIME: Final = 22 - 3  # field 22 of /proc/PID/stat, counted after the name in parentheses


def name_arguments(folder: Path) -> list[str]:
    """The part of QEMU's command line by which the VMM of `folder` is found."""
    return [_NAME.decode(), str(folder).replace(",", ",,")]


def record(folder: Path, pid: int) -> None:
    """Write the record of `pid` into `folder`; it appears whole or not at all. Raises OSError.

    It needn't survive a power cut: the process doesn't either.
    """
    content = {"pid": pid, "start_time": _start_time(pid), "boot": _boot_id()}
    write_whole(folder / RECORD, json.dumps(content).encode(), survive=False)


def open_process(folder: Path) -> tuple[int, int]:
    """The id of the living VMM of `folder`, and a new descriptor (pidfd) of its process.

    Blocking. Raises RuntimeFailure with what became of it if it doesn't live.
    """
    try:
        content = json.loads((folder / RECORD).read_text())
        pid, start_time, boot = int(content["pid"]), int(content["start_time"]), content["boot"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeFailure(f"its VMM isn't known any more: {folder / RECORD} can't be read") from error
    if boot != _boot_id():
        raise RuntimeFailure("the host was restarted while it ran")
    ended = RuntimeFailure("its VMM ended while no server watched it")
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        raise ended from error
    try:
        # The descriptor now holds the process, so what is checked is what is used.
        if _start_time(pid) != start_time or _has_ended(descriptor, 0):
            raise ended
    except OSError as error:
        os.close(descriptor)
        raise ended from error
    except BaseException:
        os.close(descriptor)
        raise
    return pid, descriptor


def end_strays(workspace: Path, keep: Collection[Path]) -> int:
    """Kill every VMM in a folder of `workspace` that isn't in `keep`; wait until each is gone; how many.

    Blocking.
    """
    killed: list[int] = []
    try:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not _is_stray(int(entry.name), workspace, keep):
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                descriptor = os.pidfd_open(int(entry.name))
                killed.append(descriptor)
                # Looked at again: the descriptor now holds the process, so what is checked is what is killed.
                if _is_stray(int(entry.name), workspace, keep):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return sum(_has_ended(descriptor, _END) for descriptor in killed)
    finally:
        for descriptor in killed:
            os.close(descriptor)


def _is_stray(pid: int, workspace: Path, keep: Collection[Path]) -> bool:
    folder = _folder_of(pid)
    return folder is not None and folder.parent == workspace and folder not in keep


def _folder_of(pid: int) -> Path | None:
    """The folder of the VMM that this process is, if it is one of this user."""
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        if process.stat().st_uid != os.geteuid() or not Path(os.fsdecode(words[0])).name.startswith(_PROGRAM):
            return None
        return Path(os.fsdecode(words[words.index(_NAME) + 1]).replace(",,", ","))
    except (OSError, ValueError, IndexError):
        return None  # it ended, or it is something else


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Whether the process of a pidfd ends within `seconds`."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot. Raises OSError if there is no such process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
