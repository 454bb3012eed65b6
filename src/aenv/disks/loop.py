"""Loop devices, by the kernel's own calls: they let go of their file as soon as nobody has them open.

Source: Linux `include/uapi/linux/loop.h`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CONTROL: Final = Path("/dev/loop-control")
_GET_FREE: Final = 0x4C82  # LOOP_CTL_GET_FREE
_CONFIGURE: Final = 0x4C0A  # LOOP_CONFIGURE, Linux 5.8
_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64
_INFO_BYTES: Final = 232
_FLAGS_AT: Final = 52
_AUTOCLEAR: Final = 4  # LO_FLAGS_AUTOCLEAR
_DIRECT_IO: Final = 16  # LO_FLAGS_DIRECT_IO
_MAJOR: Final = 7
_CONFIG: Final = struct.Struct("=II QQQQQIIII 64s64s32s QQ 64x")
"""struct loop_config: file, block size, then struct loop_info64, whose flags are its fourth last."""
_TRIES: Final = 20


class NoLoopDevice(Exception):
    """The host has no loop device to give; the message says what to do."""


@contextmanager
def loop_device(file: int, nodes: Path, *, direct: bool = False) -> Iterator[tuple[Path, int]]:
    """A loop device on an open file: its path and a descriptor, within the block.

    It goes when it isn't mounted any more and the block has ended, or the process. `nodes` is a folder where
    a device node may be made if the host's /dev lacks it. A `direct` one has no cache of its own below it.
    Raises NoLoopDevice, OSError.
    """
    for _ in range(_TRIES):
        path = _free(nodes)
        try:
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NoLoopDevice(f"{path} can't be opened: {error.strerror}") from error
        try:
            fcntl.ioctl(device, _CONFIGURE, _configuration(file, direct=direct))
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:  # else somebody else was quicker
                raise NoLoopDevice(f"{path} can't be set up: {error.strerror}") from error
            continue
        try:
            if direct and not _flags(device) & _DIRECT_IO:
                raise NoLoopDevice(f"{path} doesn't pass on what it gets as it is (no direct I/O)")
            yield path, device
        finally:
            os.close(device)
        return
    raise NoLoopDevice("others take every loop device first")


def _configuration(file: int, *, direct: bool) -> bytes:
    flags = _AUTOCLEAR | (_DIRECT_IO if direct else 0)
    nothing = (0,) * 5  # device, inode, rdevice, offset, size limit
    return _CONFIG.pack(file, 0, *nothing, 0, 0, 0, flags, b"", b"", b"", 0, 0)


def _flags(device: int) -> int:
    info = fcntl.ioctl(device, _STATUS, bytes(_INFO_BYTES))
    return int.from_bytes(info[_FLAGS_AT : _FLAGS_AT + 4], "little")


def _free(nodes: Path) -> Path:
    """The path of a device that nobody uses at the moment."""
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, _GET_FREE)
        finally:
            os.close(control)
    except OSError as error:
        raise NoLoopDevice(
            f"{_CONTROL} gives no loop device ({error.strerror}): run `modprobe loop`; in a container, give "
            "it the host's /dev and the capability SYS_ADMIN"
        ) from error
    path = Path(f"/dev/loop{number}")
    if path.exists():
        return path
    path = nodes / path.name
    with contextlib.suppress(FileExistsError):
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_MAJOR, number))
    return path
