"""Private pages are found the same way by both means, and copied byte for byte."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.memory import pages
from aenv.memory.pages import PAGE_SIZE
from aenv.memory.transfer import WORDS, read_process, write_process

COUNT = 4096


class Mapped:
    """A private mapping by this very process of a file, which is made with `count` random pages if given."""

    def __init__(self, path: Path, count: int | None) -> None:
        self.path = path
        if count is not None:
            path.write_bytes(os.urandom(count * PAGE_SIZE))
        with path.open("rb") as file:
            self.memory = mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        self.size = path.stat().st_size
        self.address = pages.find_mapping(os.getpid(), path.stat(), self.size)

    def write(self, number: int) -> None:
        """Make one page this process's own."""
        self.memory[number * PAGE_SIZE] ^= 1

    def close(self) -> None:
        self.memory.close()


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Mapped]:
    mapping = Mapped(tmp_path / "base", COUNT)
    yield mapping
    mapping.close()


def both(mapped: Mapped) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """What both means find, which must be equal."""
    slow = pages.scan_pagemap(os.getpid(), mapped.address, mapped.size)
    try:
        quick = pages.scan_ioctl(os.getpid(), mapped.address, mapped.size)
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise
        return slow
    assert quick.tolist() == slow.tolist()
    return quick


def test_only_written_pages_are_private(mapped: Mapped) -> None:
    assert both(mapped).tolist() == []
    assert sum(mapped.memory[number * PAGE_SIZE] for number in range(COUNT)) > 0  # reading changes nothing
    assert both(mapped).tolist() == []
    for number in (0, 1, 2, 7, 100, 101, COUNT - 1):
        mapped.write(number)
    assert both(mapped).tolist() == [[0, 3], [7, 8], [100, 102], [COUNT - 1, COUNT]]


def test_more_ranges_than_fit_one_call(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_REGIONS_PER_CALL", 7)
    for number in range(0, COUNT, 3):
        mapped.write(number)
    assert pages.numbers_of(both(mapped)).tolist() == list(range(0, COUNT, 3))


def test_many_ranges_are_read_and_written(mapped: Mapped) -> None:
    numbers = np.arange(0, COUNT, 2)
    ranges = pages.ranges_of(numbers)
    buffer = np.zeros((COUNT, WORDS), dtype=np.uint64)
    content = np.frombuffer(mapped.path.read_bytes(), dtype=np.uint64).reshape(-1, WORDS)
    assert np.array_equal(read_process(os.getpid(), mapped.address, ranges, buffer), content[::2])
    write_process(os.getpid(), mapped.address, ranges, ~content[::2])
    assert pages.numbers_of(both(mapped)).tolist() == numbers.tolist()
    assert mapped.memory[:PAGE_SIZE] == (~content[0]).tobytes()
    assert mapped.memory[PAGE_SIZE : 2 * PAGE_SIZE] == content[1].tobytes()


def test_a_process_that_is_gone_is_an_error(mapped: Mapped) -> None:
    gone = 2**22 - 1
    with pytest.raises(OSError, match=r"No such (file|process)"):
        pages.find_mapping(gone, mapped.path.stat(), mapped.size)
    with pytest.raises(OSError, match=r"No such (file|process)"):
        pages.private_pages(gone, mapped.address, mapped.size)
    with pytest.raises(OSError, match="No such process"):
        read_process(
            gone, mapped.address, pages.ranges_of(np.array([1])), np.zeros((1, WORDS), dtype=np.uint64)
        )


def test_a_file_that_is_not_mapped_is_an_error(mapped: Mapped, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * PAGE_SIZE)
    with pytest.raises(LookupError):
        pages.find_mapping(os.getpid(), other.stat(), PAGE_SIZE)
    with pytest.raises(LookupError):
        pages.find_mapping(os.getpid(), mapped.path.stat(), mapped.size + PAGE_SIZE)


@given(st.sets(st.integers(0, 500)), st.integers(1, 50))
def test_ranges_and_numbers_are_two_views(numbers: set[int], most: int) -> None:
    ordered = sorted(numbers)
    ranges = pages.ranges_of(np.array(ordered, dtype=np.int64))
    assert pages.numbers_of(ranges).tolist() == ordered
    pieces = [pages.numbers_of(piece).tolist() for piece in pages.split(ranges, most)]
    assert [number for piece in pieces for number in piece] == ordered
    assert all(0 < len(piece) <= most for piece in pieces)
