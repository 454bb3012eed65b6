"""Tap devices, through `/dev/net/tun` (Documentation/networking/tuntap.rst in Linux)."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

TUN_DEVICE: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA
_TUNSETPERSIST: Final = 0x400454CB
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000


def attach(name: str) -> int:
    """Attach to the tap `name` of this thread's namespace, made if missing; non-blocking, close-on-exec.

    Raises OSError, with EBUSY if another process is attached.
    """
    descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_persistent(name: str) -> None:
    """Make a tap that stays when nobody is attached. Raises OSError."""
    descriptor = attach(name)
    try:
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
