"""The mounts that editing a disk needs, by the kernel's own calls.

Source: mount(2), umount2(2), syncfs(2).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_NOSUID: Final = 2
_NODEV: Final = 4
_NOATIME: Final = 1024
_FLAGS: Final = _NOSUID | _NODEV | _NOATIME
_EXT4: Final = "errors=remount-ro,nobarrier,data=writeback,commit=300"
"""A disk that is not finished is thrown away, so its order on the way doesn't matter."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_ext4(device: Path, folder: Path) -> None:
    """Mount a device's file system, whose devices can't be opened. Raises OSError."""
    _mount(str(device), folder, "ext4", _EXT4)


def mount_tmpfs(folder: Path) -> None:
    """An empty file system in memory on `folder`. Raises OSError."""
    _mount("none", folder, "tmpfs", "mode=0700")


def mount_fusectl(folder: Path) -> None:
    """The kernel's settings of FUSE connections on `folder`. Raises OSError."""
    _mount("none", folder, "fusectl", "")


def unmount(folder: Path) -> None:
    """Write all of a file system to its device and unmount it. Raises OSError."""
    _check(_libc.umount2(os.fsencode(folder), 0), folder)


def sync_filesystem(folder: Path) -> None:
    """Write all of a file system to its device. Raises OSError, also for what couldn't be written before."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(descriptor), folder)
    finally:
        os.close(descriptor)


def _mount(source: str, folder: Path, kind: str, options: str) -> None:
    words = (source.encode(), os.fsencode(folder), kind.encode())
    _check(_libc.mount(*words, ctypes.c_ulong(_FLAGS), options.encode()), folder)


def _check(result: int, path: Path) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
