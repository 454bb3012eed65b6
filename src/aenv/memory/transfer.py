"""Copy pages between this process and another one's memory or a file, many ranges a call.

`process_vm_readv(2)` and `process_vm_writev(2)` take whole lists of ranges and copy once; `/proc/PID/mem`
copies twice and takes one range a call. Both need the right to trace the other process.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aenv.memory.pages import PAGE_SIZE, PageRanges

PageArray = NDArray[np.uint64]
"""Shape (pages, 512): the words of whole pages."""

WORDS: Final = PAGE_SIZE // 8
_IOV_MAX: Final = 1024  # limits.h

_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )


def read_process(pid: int, address: int, ranges: PageRanges, buffer: PageArray) -> PageArray:
    """Read `ranges` of the mapping at `address`, packed into the front of `buffer`. Raises OSError."""
    return _transfer(_libc.process_vm_readv, pid, address, ranges, buffer)


def write_process(pid: int, address: int, ranges: PageRanges, pages: PageArray) -> None:
    """Write packed `pages` to `ranges` of the mapping at `address`. Raises OSError."""
    _transfer(_libc.process_vm_writev, pid, address, ranges, pages)


def read_file(descriptor: int, ranges: PageRanges, buffer: PageArray) -> PageArray:
    """Read `ranges` of a flat memory file, packed into the front of `buffer`.

    It reads rather than maps: a file cut short by someone else is then an EOFError and not a SIGBUS.
    """
    view = bytes_of(buffer)
    position = 0
    for first, end in ranges.tolist():
        length = (end - first) * PAGE_SIZE
        read_exactly(descriptor, view[position : position + length], first * PAGE_SIZE)
        position += length
    return buffer[: position // PAGE_SIZE]


def bytes_of(pages: PageArray) -> memoryview:
    """The memory of contiguous `pages` as bytes, without a copy."""
    return pages.data.cast("B") if len(pages) else memoryview(b"")


def read_exactly(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset`. Raises EOFError if the file ends before."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise EOFError(f"the file ends at {offset + done}")
        done += count


def write_exactly(descriptor: int, view: memoryview | bytes, offset: int) -> None:
    """Write all of `view` at `offset`. Raises OSError."""
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def write_all(descriptor: int, views: Sequence[memoryview], offset: int) -> None:
    """Write many pieces one after the other from `offset` on, with few calls. Raises OSError."""
    for start in range(0, len(views), _IOV_MAX):
        part = views[start : start + _IOV_MAX]
        length = sum(len(view) for view in part)
        if os.pwritev(descriptor, part, offset) != length:  # cut short: go on piece by piece
            position = offset
            for view in part:
                write_exactly(descriptor, view, position)
                position += len(view)
        offset += length


def _transfer(
    call: ctypes._NamedFuncPointer, pid: int, address: int, ranges: PageRanges, buffer: PageArray
) -> PageArray:
    remote = np.empty((len(ranges), 2), dtype=np.uint64)
    remote[:, 0] = ranges[:, 0] * PAGE_SIZE + address
    remote[:, 1] = (ranges[:, 1] - ranges[:, 0]) * PAGE_SIZE
    position = 0
    for start in range(0, len(remote), _IOV_MAX):
        part = remote[start : start + _IOV_MAX]
        length = int(part[:, 1].sum())
        local = np.array([buffer.ctypes.data + position, length], dtype=np.uint64)
        if position + length > buffer.nbytes:
            raise ValueError("the buffer is too small")
        count = call(pid, local.ctypes.data, 1, part.ctypes.data, len(part), 0)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"memory of process {pid}: {os.strerror(code)}")
        if count != length:
            raise OSError(errno.EFAULT, f"memory of process {pid}: only {count} of {length} bytes moved")
        position += length
    return buffer[: position // PAGE_SIZE]
