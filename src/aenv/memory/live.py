"""Capture the memory of a stopped VM into a delta, and put a delta into a VM that hasn't run yet.

Blocking functions for worker threads. Each thread keeps two buffers: fresh memory would cost a page fault for
every page copied.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aenv.errors import RuntimeFailure
from aenv.memory.delta import DeltaSummary, DeltaWriter, open_delta
from aenv.memory.pages import PAGE_SIZE, PageRanges, find_mapping, numbers_of, private_pages, split
from aenv.memory.transfer import WORDS, PageArray, read_file, read_process, write_process

_BUFFER_PAGES: Final = 2048  # 8 MiB twice for each thread; larger is not faster
_COPY_PAGES: Final = (128 << 20) // PAGE_SIZE
"""Most that is copied before it is written; what is more is written while the guest waits."""


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.pages: PageArray = np.zeros((_BUFFER_PAGES, WORDS), dtype=np.uint64)
        self.base: PageArray = np.zeros((_BUFFER_PAGES, WORDS), dtype=np.uint64)


_buffers = _Buffers()


@dataclass(frozen=True)
class MemoryCopy:
    """The pages that a process had changed in its private mapping of `base`, copied but not written yet."""

    base: Path
    size: int
    ranges: PageRanges
    pages: PageArray

    def save(self, target: Path) -> DeltaSummary:
        """Write the new delta `target`. Raises OSError, or RuntimeFailure if the base was cut short."""
        with _new_delta(self.base, self.size, target) as (writer, base):
            done = 0
            for ranges in split(self.ranges, _BUFFER_PAGES):
                numbers = numbers_of(ranges)
                pages = self.pages[done : done + len(numbers)]
                writer.add(numbers, pages, read_file(base, ranges, _buffers.base))
                done += len(numbers)
            return writer.finish()


def save_memory(
    pid: int, base: Path, size: int, target: Path, address: int | None = None
) -> MemoryCopy | DeltaSummary:
    """Take the pages that process `pid` has changed in its private mapping of `base`.

    Up to 128 MiB are only copied: the process may go on, and the copy is still to be saved to `target`. More
    is written to `target` at once. The process must not write meanwhile. `address` is what `find_memory` has
    found, if it was asked before. Raises OSError, or RuntimeFailure if `base` isn't mapped or was cut short.
    """
    address = find_memory(pid, base, size) if address is None else address
    ranges = private_pages(pid, address, size)
    count = int((ranges[:, 1] - ranges[:, 0]).sum())
    if count <= _COPY_PAGES:
        room: PageArray = np.empty((count, WORDS), dtype=np.uint64)
        return MemoryCopy(base, size, ranges, read_process(pid, address, ranges, room))
    with _new_delta(base, size, target) as (writer, descriptor):
        for piece in split(ranges, _BUFFER_PAGES):
            pages = read_process(pid, address, piece, _buffers.pages)
            writer.add(numbers_of(piece), pages, read_file(descriptor, piece, _buffers.base))
        return writer.finish()


def load_memory(pid: int, base: Path, size: int, delta: Path) -> DeltaSummary:
    """Put `delta` into process `pid`'s private mapping of `base`.

    Raises OSError, or RuntimeFailure if the delta is damaged; the process must not run the guest then.
    """
    address = find_memory(pid, base, size)
    with open_delta(delta, size) as reader:
        for ranges, pages in reader.pieces(_buffers.pages):
            write_process(pid, address, ranges, pages)
        return reader.summary


@contextmanager
def _new_delta(base: Path, size: int, target: Path) -> Iterator[tuple[DeltaWriter, int]]:
    """A writer for the new file `target`, and the base open for reading."""
    base_descriptor = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield DeltaWriter(descriptor, size), base_descriptor
        finally:
            os.close(descriptor)
    except EOFError as error:
        raise RuntimeFailure(f"the memory base {base} was cut short: {error}") from error
    finally:
        os.close(base_descriptor)


def find_memory(pid: int, base: Path, size: int) -> int:
    """Where process `pid` has its private mapping of `base`, for as long as it lives.

    Raises OSError, or RuntimeFailure if `base` isn't mapped or was cut short.
    """
    file = base.stat()
    if file.st_size != size:
        raise RuntimeFailure(f"the memory base {base} has {file.st_size} bytes instead of {size}")
    try:
        return find_mapping(pid, file, size)
    except LookupError as error:
        raise RuntimeFailure(f"{error}: {base}") from error
