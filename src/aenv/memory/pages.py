"""Which pages of a private file mapping another process has made its own by writing to them.

Sources: Linux `Documentation/admin-guide/mm/pagemap.rst` (pagemap and the `PAGEMAP_SCAN` ioctl, from 6.7) and
`proc_pid_maps(5)`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

PAGE_SIZE: Final = 4096

PageRanges = NDArray[np.int64]
"""Shape (n, 2): first page and the page after the last, counted from the mapping's start, in order."""

_PAGEMAP_SCAN: Final = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_SCAN_ARGUMENT: Final = struct.Struct("=12Q")
_CATEGORY_FILE: Final = 1 << 2
_CATEGORY_PRESENT: Final = 1 << 3
_CATEGORY_SWAPPED: Final = 1 << 4
_REGIONS_PER_CALL: Final = 16384

_PRESENT: Final = np.uint64(1 << 63)
_SWAPPED: Final = np.uint64(1 << 62)
_FILE_OR_SHARED: Final = np.uint64(1 << 61)
_ENTRY_BYTES: Final = 8


def find_mapping(pid: int, file: os.stat_result, size: int) -> int:
    """The address at which process `pid` maps the first `size` bytes of `file`.

    The kernel may list one mapping as several neighbours. Raises LookupError if it isn't mapped in one
    piece, OSError if the process is gone.
    """
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    start = end = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or fields[3] != device or int(fields[4]) != file.st_ino:
            continue
        low, high = (int(part, 16) for part in fields[0].split("-"))
        offset = int(fields[2], 16)
        if offset == 0:
            start, end = low, high
        elif low == end and offset == low - start:
            end = high
        if start and end - start >= size:
            return start
    raise LookupError(f"process {pid} doesn't map the memory base in one piece of {size} bytes")


def private_pages(pid: int, address: int, size: int) -> PageRanges:
    """The pages of the private file mapping at `address` that process `pid` wrote to, swapped ones included.

    Raises OSError if the process is gone.
    """
    try:
        return scan_ioctl(pid, address, size)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL):
            raise
    return scan_pagemap(pid, address, size)


def scan_ioctl(pid: int, address: int, size: int) -> PageRanges:
    """`private_pages` by one walk of the page table in the kernel. ENOTTY before Linux 6.7."""
    regions = np.empty((_REGIONS_PER_CALL, 3), dtype=np.uint64)
    found: list[NDArray[np.uint64]] = []
    position, end = address, address + size
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        while True:
            argument = bytearray(
                _SCAN_ARGUMENT.pack(
                    _SCAN_ARGUMENT.size,
                    0,  # flags
                    position,
                    end,
                    0,  # out: where the walk ended; too small on some kernels, so not used
                    regions.ctypes.data,
                    _REGIONS_PER_CALL,
                    0,  # no limit of pages
                    _CATEGORY_FILE,  # inverted: the mask asks for "not of the file"
                    _CATEGORY_FILE,
                    _CATEGORY_PRESENT | _CATEGORY_SWAPPED,
                    _CATEGORY_FILE,  # all that differs between results, so neighbours are merged
                )
            )
            count = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, argument, True)
            found.append(regions[:count, :2].copy())
            if count < _REGIONS_PER_CALL:  # a walk stops early only when its room is full
                break
            position = int(regions[count - 1, 1])
    return (np.concatenate(found).astype(np.int64) - address) // PAGE_SIZE


def scan_pagemap(pid: int, address: int, size: int) -> PageRanges:
    """`private_pages` by reading one entry a page, as any kernel can."""
    descriptor = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = size // PAGE_SIZE * _ENTRY_BYTES
        content = os.pread(descriptor, length, address // PAGE_SIZE * _ENTRY_BYTES)
    finally:
        os.close(descriptor)
    if len(content) != length:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has no memory any more")
    entries = np.frombuffer(content, dtype=np.uint64)
    own = ((entries & (_PRESENT | _FILE_OR_SHARED)) == _PRESENT) | ((entries & _SWAPPED) != 0)
    return ranges_of(np.flatnonzero(own))


def ranges_of(pages: NDArray[np.integer]) -> PageRanges:
    """Ordered page numbers as ranges."""
    if not len(pages):
        return np.empty((0, 2), dtype=np.int64)
    numbers = pages.astype(np.int64)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts = numbers[np.concatenate(([0], breaks))]
    lasts = numbers[np.concatenate((breaks - 1, [len(numbers) - 1]))]
    return np.stack((firsts, lasts + 1), axis=1)


def numbers_of(ranges: PageRanges) -> NDArray[np.int64]:
    """Ranges as ordered page numbers."""
    lengths = ranges[:, 1] - ranges[:, 0]
    ends = np.cumsum(lengths)
    shifts: NDArray[np.int64] = np.repeat(ranges[:, 0] - (ends - lengths), lengths)
    return np.arange(len(shifts), dtype=np.int64) + shifts


def split(ranges: PageRanges, most: int) -> list[PageRanges]:
    """Cut ranges into consecutive pieces of at most `most` pages each."""
    numbers = numbers_of(ranges)
    return [ranges_of(numbers[start : start + most]) for start in range(0, len(numbers), most)]
