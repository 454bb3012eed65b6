"""Base plus delta is the memory that was saved, and a damaged delta is never applied silently."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aenv.errors import RuntimeFailure
from aenv.memory import live
from aenv.memory.delta import DeltaSummary, DeltaWriter, verify_delta
from aenv.memory.flatten import copy_base, flatten
from aenv.memory.live import MemoryCopy, load_memory, save_memory
from aenv.memory.pages import PAGE_SIZE
from aenv.memory.transfer import WORDS
from tests.unit.memory.test_pages import Mapped

COUNT = 64


def memory(seed: int, count: int = COUNT) -> NDArray[np.uint64]:
    """Random pages, every fourth one zero."""
    pages = np.random.default_rng(seed).integers(0, 2**63, (count, WORDS), dtype=np.uint64)
    pages[::4] = 0
    return pages


def write_delta(
    path: Path, base: NDArray[np.uint64], now: NDArray[np.uint64], numbers: list[int], piece: int
) -> DeltaSummary:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        writer = DeltaWriter(descriptor, base.nbytes)
        for start in range(0, len(numbers), piece):
            part = np.array(numbers[start : start + piece], dtype=np.int64)
            writer.add(part, now[part], base[part])
        return writer.finish()
    finally:
        os.close(descriptor)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 100),
    filled=st.sets(st.integers(0, COUNT - 1)),
    zeroed=st.sets(st.integers(0, COUNT - 1)),
    same=st.sets(st.integers(0, COUNT - 1)),
    piece=st.integers(1, 20),
)
def test_base_plus_delta_is_the_memory(  # noqa: PLR0917 - hypothesis draws them by name
    tmp_path: Path, seed: int, filled: set[int], zeroed: set[int], same: set[int], piece: int
) -> None:
    base, now = memory(seed), memory(seed)
    now[sorted(filled)] = memory(seed + 1)[sorted(filled)] | np.uint64(1)
    now[sorted(zeroed)] = 0
    summary = write_delta(tmp_path / "delta", base, now, sorted(filled | zeroed | same), piece)
    differing = {number for number in range(COUNT) if not np.array_equal(base[number], now[number])}
    assert summary.data_pages + summary.zero_pages == len(differing)  # equal pages are pruned
    assert summary.zero_pages == len({number for number in differing if not now[number].any()})

    base.tofile(tmp_path / "base")
    (tmp_path / "flat").unlink(missing_ok=True)
    flatten(tmp_path / "base", tmp_path / "delta", tmp_path / "flat")
    assert (tmp_path / "flat").read_bytes() == now.tobytes()
    assert (tmp_path / "base").read_bytes() == base.tobytes()
    assert verify_delta(tmp_path / "delta", base.nbytes) == summary


def test_every_damage_is_found(tmp_path: Path) -> None:
    base, now = memory(1, 8), memory(2, 8)
    now[6] = 0
    base[6] = 1
    path = tmp_path / "delta"
    write_delta(path, base, now, list(range(8)), 3)
    whole = path.read_bytes()
    used = [*range(52), *range(PAGE_SIZE, len(whole), 97), len(whole) - 1]
    for at in used:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(RuntimeFailure, match="delta is damaged"):
            verify_delta(path, base.nbytes)
    for length in (0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RuntimeFailure, match="delta is damaged"):
            verify_delta(path, base.nbytes)
    path.write_bytes(whole + b"x")
    with pytest.raises(RuntimeFailure, match="bytes instead of"):
        verify_delta(path, base.nbytes)
    path.write_bytes(whole)
    with pytest.raises(RuntimeFailure, match="it is of a memory of"):
        verify_delta(path, 2 * base.nbytes)
    with pytest.raises(RuntimeFailure, match="can't be opened"):
        verify_delta(tmp_path / "missing", base.nbytes)


@pytest.mark.parametrize("most", [0, 5000])
def test_a_live_memory_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Whether it is small enough to be copied first or not."""
    monkeypatch.setattr(live, "_COPY_PAGES", most)
    source = Mapped(tmp_path / "base", 5000)  # more than one buffer
    for number in range(0, 5000, 2):
        source.write(number)
    source.memory[PAGE_SIZE * 6 : PAGE_SIZE * 9] = bytes(3 * PAGE_SIZE)
    source.write(40)  # back to what it was
    summary = save_memory(os.getpid(), source.path, source.size, tmp_path / "delta")
    if isinstance(summary, MemoryCopy):
        summary = summary.save(tmp_path / "delta")
    assert summary == DeltaSummary(data_pages=2500 - 3, zero_pages=3)
    expected = bytes(source.memory)
    source.close()

    target = Mapped(tmp_path / "base", None)
    assert bytes(target.memory) != expected
    assert load_memory(os.getpid(), target.path, target.size, tmp_path / "delta") == summary
    assert bytes(target.memory) == expected
    target.close()


def test_a_sparse_base_is_copied_sparse(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(20 << 20)
        file.write(os.urandom(9000))
        file.seek(40 << 20)
        file.write(bytes(1 << 20))
    copy_base(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < 1 << 20
    with pytest.raises(FileExistsError):
        copy_base(source, tmp_path / "copy")


def test_a_cut_base_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    source = Mapped(tmp_path / "base", 8)
    source.write(7)
    os.truncate(source.path, 4 * PAGE_SIZE)
    with pytest.raises(RuntimeFailure, match="bytes instead of"):
        save_memory(os.getpid(), source.path, source.size, tmp_path / "delta")
    with pytest.raises(RuntimeFailure, match="bytes instead of"):
        load_memory(os.getpid(), source.path, source.size, tmp_path / "delta")
    source.close()
