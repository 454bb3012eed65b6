"""The delta file: the pages in which a guest's memory differs from its base.

Layout, integers little-endian::

    0      magic "AENVDLTA", version u32, page size u32, memory size u64, data pages u64, zero pages u64,
           CRC-32 of the data u32, CRC-32 of the index u32, CRC-32 of the header so far u32; zeros up to 4096
    4096   the data pages, in the order of their numbers
    then   the index: the numbers u32 of the data pages, then those of the zero pages, each in order

A page that became zero is named in the index without data. A page in neither list is that of the base.
The file's size follows from the header, so a file cut short is found before anything is read from it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aenv.errors import RuntimeFailure
from aenv.memory.pages import PAGE_SIZE, PageRanges, ranges_of, split
from aenv.memory.transfer import WORDS, PageArray, bytes_of, read_exactly, write_all, write_exactly

_MAGIC: Final = b"AENVDLTA"
_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<8sIIQQQII")
_HEADER_CRC: Final = struct.Struct("<I")
_NUMBER: Final = np.dtype("<u4")


@dataclass(frozen=True)
class DeltaSummary:
    """How much a delta holds, in pages."""

    data_pages: int
    zero_pages: int


@dataclass(frozen=True)
class _Header:
    memory_size: int
    data_pages: int
    zero_pages: int
    data_crc: int
    index_crc: int

    @property
    def index_offset(self) -> int:
        return (1 + self.data_pages) * PAGE_SIZE

    @property
    def file_size(self) -> int:
        return self.index_offset + (self.data_pages + self.zero_pages) * _NUMBER.itemsize

    def pack(self) -> bytes:
        fields = _FIELDS.pack(
            _MAGIC,
            _VERSION,
            PAGE_SIZE,
            self.memory_size,
            self.data_pages,
            self.zero_pages,
            self.data_crc,
            self.index_crc,
        )
        return (fields + _HEADER_CRC.pack(zlib.crc32(fields))).ljust(PAGE_SIZE, b"\0")


class DeltaWriter:
    """Writes a new delta piece by piece; it is valid only after `finish`."""

    def __init__(self, descriptor: int, memory_size: int) -> None:
        """`descriptor` is an empty file open for writing; the caller closes it."""
        self._descriptor = descriptor
        self._memory_size = memory_size
        self._data: list[NDArray[np.int64]] = []
        self._zero: list[NDArray[np.int64]] = []
        self._data_pages = 0
        self._crc = 0

    def add(self, numbers: NDArray[np.int64], pages: PageArray, base: PageArray) -> None:
        """Add the pages `numbers`, in order and after all earlier ones, but those that equal `base`.

        Raises OSError.
        """
        changed = (pages != base).any(axis=1)
        filled = pages.any(axis=1)
        keep = np.flatnonzero(changed & filled)
        self._zero.append(numbers[changed & ~filled])
        self._data.append(numbers[keep])
        runs = [bytes_of(pages[first:end]) for first, end in ranges_of(keep).tolist()]
        for run in runs:
            self._crc = zlib.crc32(run, self._crc)
        write_all(self._descriptor, runs, (1 + self._data_pages) * PAGE_SIZE)
        self._data_pages += len(keep)

    def finish(self) -> DeltaSummary:
        """Write the index and the header. Raises OSError."""
        empty: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        zero = np.concatenate([empty, *self._zero])
        index = np.concatenate([empty, *self._data, zero]).astype(_NUMBER).tobytes()
        header = _Header(self._memory_size, self._data_pages, len(zero), self._crc, zlib.crc32(index))
        write_exactly(self._descriptor, index, header.index_offset)
        write_exactly(self._descriptor, header.pack(), 0)
        return DeltaSummary(header.data_pages, header.zero_pages)


class DeltaReader:
    """A delta open for reading. Every method raises RuntimeFailure, naming the file, if it is damaged."""

    def __init__(self, descriptor: int, path: Path, memory_size: int) -> None:
        self._descriptor = descriptor
        self._path = path
        try:
            self._header = _read_header(descriptor)
            if self._header.memory_size != memory_size:
                raise ValueError(f"it is of a memory of {self._header.memory_size} bytes, not {memory_size}")
            index = bytearray(self._header.file_size - self._header.index_offset)
            read_exactly(descriptor, memoryview(index), self._header.index_offset)
            if zlib.crc32(index) != self._header.index_crc:
                raise ValueError("the checksum of its index is wrong")
        except (OSError, EOFError, ValueError) as error:
            raise self._damaged(error) from error
        numbers = np.frombuffer(index, dtype=_NUMBER).astype(np.int64)
        self._data = numbers[: self._header.data_pages]
        self._zero = numbers[self._header.data_pages :]

    @property
    def summary(self) -> DeltaSummary:
        """How much is in it."""
        return DeltaSummary(self._header.data_pages, self._header.zero_pages)

    def pieces(self, buffer: PageArray) -> Iterator[tuple[PageRanges, PageArray]]:
        """The changed pages as ranges with their packed content, in pieces as large as `buffer`.

        The content is compared with its checksum as it is read: only after the last piece is all known
        to be right. The arrays are reused from piece to piece.
        """
        crc, done = 0, 0
        for ranges in split(ranges_of(self._data), len(buffer)):
            count = int((ranges[:, 1] - ranges[:, 0]).sum())
            view = bytes_of(buffer[:count])
            try:
                read_exactly(self._descriptor, view, (1 + done) * PAGE_SIZE)
            except (OSError, EOFError) as error:
                raise self._damaged(error) from error
            crc = zlib.crc32(view, crc)
            done += count
            yield ranges, buffer[:count]
        if crc != self._header.data_crc:
            raise self._damaged(ValueError("the checksum of its data is wrong"))
        if len(self._zero):
            zeros = buffer[: min(len(buffer), len(self._zero))]
            zeros[:] = 0
            for ranges in split(ranges_of(self._zero), len(zeros)):
                yield ranges, zeros[: int((ranges[:, 1] - ranges[:, 0]).sum())]

    def _damaged(self, error: Exception) -> RuntimeFailure:
        return RuntimeFailure(f"the memory delta {self._path} is damaged: {error}")


@contextmanager
def open_delta(path: Path, memory_size: int) -> Iterator[DeltaReader]:
    """Open a delta of a memory of `memory_size` bytes. Raises RuntimeFailure if missing or damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeFailure(f"the memory delta {path} can't be opened: {error.strerror}") from error
    try:
        yield DeltaReader(descriptor, path, memory_size)
    finally:
        os.close(descriptor)


def verify_delta(path: Path, memory_size: int) -> DeltaSummary:
    """Read a whole delta. Raises RuntimeFailure if missing or damaged."""
    buffer = np.empty((1024, WORDS), dtype=np.uint64)
    with open_delta(path, memory_size) as delta:
        for _ in delta.pieces(buffer):
            pass
        return delta.summary


def _read_header(descriptor: int) -> _Header:
    block = bytearray(PAGE_SIZE)
    read_exactly(descriptor, memoryview(block), 0)
    fields = bytes(block[: _FIELDS.size])
    magic, version, page_size, *rest = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise ValueError("it doesn't start like a delta")
    if (version, page_size) != (_VERSION, PAGE_SIZE):
        raise ValueError(f"its format is version {version} with pages of {page_size} bytes, unknown here")
    if _HEADER_CRC.unpack_from(block, _FIELDS.size)[0] != zlib.crc32(fields):
        raise ValueError("the checksum of its header is wrong")
    header = _Header(*rest)
    size = os.fstat(descriptor).st_size
    if size != header.file_size:
        raise ValueError(f"it has {size} bytes instead of {header.file_size}")
    return header
