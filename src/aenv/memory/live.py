"""Capture the memory of a stopped VM into a delta, and put a delta into a VM that hasn't run yet.

Blocking functions for worker threads. Each thread keeps two buffers: fresh memory would cost a page fault for
every page copied, which doubles the time a guest is frozen.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import numpy as np

from aenv.errors import RuntimeFailure
from aenv.memory.delta import DeltaSummary, DeltaWriter, open_delta
from aenv.memory.pages import find_mapping, numbers_of, private_pages, split
from aenv.memory.transfer import WORDS, PageArray, read_file, read_process, write_process

_BUFFER_PAGES: Final = 2048  # 8 MiB twice for each thread; larger is not faster


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.pages: PageArray = np.zeros((_BUFFER_PAGES, WORDS), dtype=np.uint64)
        self.base: PageArray = np.zeros((_BUFFER_PAGES, WORDS), dtype=np.uint64)


_buffers = _Buffers()


def save_memory(pid: int, base: Path, size: int, target: Path) -> DeltaSummary:
    """Write the pages that process `pid` has changed in its private mapping of `base` to the new `target`.

    The process must not write meanwhile. Raises OSError, or RuntimeFailure if `base` isn't mapped or was
    cut short.
    """
    base_descriptor = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = _address(pid, base_descriptor, base, size)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            writer = DeltaWriter(descriptor, size)
            for ranges in split(private_pages(pid, address, size), _BUFFER_PAGES):
                pages = read_process(pid, address, ranges, _buffers.pages)
                writer.add(numbers_of(ranges), pages, read_file(base_descriptor, ranges, _buffers.base))
            return writer.finish()
        finally:
            os.close(descriptor)
    except EOFError as error:
        raise RuntimeFailure(f"the memory base {base} was cut short: {error}") from error
    finally:
        os.close(base_descriptor)


def load_memory(pid: int, base: Path, size: int, delta: Path) -> DeltaSummary:
    """Put `delta` into process `pid`'s private mapping of `base`.

    Raises OSError, or RuntimeFailure if the delta is damaged; the process must not run the guest then.
    """
    base_descriptor = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = _address(pid, base_descriptor, base, size)
    finally:
        os.close(base_descriptor)
    with open_delta(delta, size) as reader:
        for ranges, pages in reader.pieces(_buffers.pages):
            write_process(pid, address, ranges, pages)
        return reader.summary


def _address(pid: int, descriptor: int, base: Path, size: int) -> int:
    file = os.fstat(descriptor)
    if file.st_size != size:
        raise RuntimeFailure(f"the memory base {base} has {file.st_size} bytes instead of {size}")
    try:
        return find_mapping(pid, file, size)
    except LookupError as error:
        raise RuntimeFailure(f"{error}: {base}") from error
