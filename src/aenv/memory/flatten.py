"""Make new bases: a copy of a base, alone or with a delta put into it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from aenv.memory.delta import open_delta
from aenv.memory.pages import PAGE_SIZE, ranges_of
from aenv.memory.transfer import WORDS, bytes_of, read_exactly, write_exactly

_FICLONE: Final = 0x40049409  # linux/fs.h
_CHUNK_PAGES: Final = 1024


def copy_base(source: Path, target: Path) -> None:
    """Copy the flat memory `source` to the new file `target`; zero pages become holes, which read as zeros.

    The file system's own clone is used where there is one. Blocking. Raises OSError; `target` is then
    removed.
    """
    _new_base(source, target, None, lambda: None)


def flatten(base: Path, delta: Path, target: Path, go_on: Callable[[], None] = lambda: None) -> None:
    """Write `base` with the pages of `delta` to the new file `target`.

    Blocking; `go_on` is called now and then, and what it raises ends the work. Raises OSError, or
    RuntimeFailure if the delta is damaged; `target` is then removed.
    """
    _new_base(base, target, delta, go_on)


def _new_base(source: Path, target: Path, delta: Path | None, go_on: Callable[[], None]) -> None:
    from_ = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        to = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _clone_or_copy(from_, to, go_on)
            if delta is not None:
                _apply(delta, to, go_on)
        except BaseException:
            target.unlink()
            raise
        finally:
            os.close(to)
    finally:
        os.close(from_)


def _clone_or_copy(source: int, target: int, go_on: Callable[[], None]) -> None:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY):
            raise
        _copy(source, target, go_on)


def _copy(source: int, target: int, go_on: Callable[[], None]) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    buffer = np.empty((_CHUNK_PAGES, WORDS), dtype=np.uint64)
    position = 0
    while True:
        try:
            start = os.lseek(source, position, os.SEEK_DATA) // PAGE_SIZE * PAGE_SIZE
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data after `position`
                return
            raise
        stop = os.lseek(source, start, os.SEEK_HOLE)
        for offset in range(start, stop, buffer.nbytes):
            go_on()
            pages = buffer[: -(-min(buffer.nbytes, size - offset) // PAGE_SIZE)]
            read_exactly(source, bytes_of(pages), offset)
            for first, end in ranges_of(np.flatnonzero(pages.any(axis=1))).tolist():
                write_exactly(target, bytes_of(pages[first:end]), offset + first * PAGE_SIZE)
        position = stop


def _apply(delta: Path, target: int, go_on: Callable[[], None]) -> None:
    buffer = np.empty((_CHUNK_PAGES, WORDS), dtype=np.uint64)
    with open_delta(delta, os.fstat(target).st_size) as reader:
        for ranges, pages in reader.pieces(buffer):
            go_on()
            done = 0
            for first, end in ranges.tolist():
                part = pages[done : done + end - first]
                write_exactly(target, bytes_of(part), first * PAGE_SIZE)
                done += end - first
