"""Merge sealed overlays into one that reads the same, over the same layer below.

It copies whole clusters from file to file: the file system shares them where it can (XFS, btrfs), and no
data passes through this process elsewhere. Only what `create_overlay` and QEMU make of it is understood;
an image with anything else in it is refused. Source of the format: QEMU `docs/interop/qcow2.txt`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aenv.disks.qcow2 import CLUSTER, HEADER, L2_ENTRIES, MAGIC, header
from aenv.errors import RuntimeFailure

Entries = NDArray[np.uint64]
"""For each cluster of a part of the disk where it lies in a file, as in L2 tables; 0: in the layers below."""

_BIG: Final = np.dtype(">u8")
_COPIED: Final = np.uint64(1 << 63)
_COMPRESSED: Final = np.uint64(1 << 62)
_OFFSET: Final = np.uint64(0x00FF_FFFF_FFFF_FE00)
_ZERO: Final = np.uint64(1)
_COUNTS_PER_BLOCK: Final = CLUSTER // 2
_PIECE: Final = 8 << 20  # bytes copied between two looks at whether to go on


def merge_from(sizes: Sequence[int], most: int) -> int | None:
    """From which layer on (lowest first, `sizes` in bytes) all are to be merged; None for `most` or fewer.

    A layer larger than twice all above it stays: it is copied only when as much has come on top, so what is
    written stays in proportion to what changed. Those that stay are few, each more than thrice the next.
    """
    if len(sizes) <= most:
        return None
    above = 0
    start = len(sizes) - 1
    for index in range(len(sizes) - 1, -1, -1):
        if sizes[index] <= 2 * above:
            start = index
        above += sizes[index]
    return start


def merge(overlays: Sequence[Path], target: Path, go_on: Callable[[], None] = lambda: None) -> None:
    """Write the new overlay `target` that reads as `overlays`, lowest first, do one over the other.

    Clusters that read as zeros whatever is below stay so. Upper overlays may be of a disk that has grown.
    Blocking; `go_on` is called now and then, and what it raises ends the work. Raises OSError, or
    RuntimeFailure if an overlay is damaged or can't be understood; `target` is then removed.
    """
    with ExitStack() as stack:
        sources = [_Source.open(path, stack) for path in overlays]
        sizes = [source.virtual_size for source in sources]
        if sizes != sorted(sizes):
            raise RuntimeFailure(f"overlays of different disks can't be merged: {sizes} bytes")
        found = [source.tables() for source in sources]
        used = sorted({number for tables in found for number in tables})
        entries: Entries = np.zeros((len(used), L2_ENTRIES), dtype=np.uint64)
        owners = np.zeros((len(used), L2_ENTRIES), dtype=np.int32)
        for row, number in enumerate(used):
            go_on()
            for owner, tables in enumerate(found):
                if (table := tables.get(number)) is not None:
                    there = table != 0
                    entries[row, there] = table[there]
                    owners[row, there] = owner
        to = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            plan = _Plan(sources, used, entries.reshape(-1), owners.reshape(-1))
            _write(to, plan, go_on)
        except BaseException:
            target.unlink()
            raise
        finally:
            os.close(to)


@dataclass(frozen=True)
class _Source:
    path: Path
    descriptor: int
    size: int
    virtual_size: int
    l1_entries: int
    l1_offset: int

    @classmethod
    def open(cls, path: Path, stack: ExitStack) -> _Source:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        block = os.pread(descriptor, HEADER.size, 0)
        if len(block) < HEADER.size:
            raise _damaged(path, "it is cut short")
        magic, version, _, _, bits, virtual, crypt, l1_entries, l1_offset, *rest = HEADER.unpack(block)
        if magic != MAGIC:
            raise _damaged(path, "it doesn't start like an overlay")
        snapshots, incompatible = rest[2], rest[4]
        if version != 3 or 1 << bits != CLUSTER or crypt or snapshots or incompatible:
            raise _damaged(path, "it was not made here")
        return cls(path, descriptor, os.fstat(descriptor).st_size, virtual, l1_entries, l1_offset)

    def tables(self) -> dict[int, Entries]:
        """Its L2 tables, by their place in the L1 table: where each cluster of the disk is."""
        offsets = self._table(self.l1_offset, self.l1_entries) & _OFFSET
        tables = {}
        for number in np.flatnonzero(offsets).tolist():
            table = self._table(int(offsets[number]), L2_ENTRIES)
            if (table & _COMPRESSED).any():
                raise _damaged(self.path, "it was not made here")
            table &= _OFFSET | _ZERO
            table[table & _ZERO != 0] = (
                _ZERO  # such a cluster may keep its space: what is there doesn't count
            )
            # The last cluster of a file may end early: the rest reads as zeros.
            if int(table.max()) >= self.size:
                raise _damaged(self.path, "it is cut short")
            tables[number] = table
        return tables

    def _table(self, offset: int, count: int) -> Entries:
        content = os.pread(self.descriptor, count * 8, offset)
        if len(content) != count * 8:
            raise _damaged(self.path, "it is cut short")
        return np.frombuffer(content, dtype=_BIG).astype(np.uint64)


@dataclass(frozen=True)
class _Plan:
    sources: Sequence[_Source]
    used: Sequence[int]
    """The places of the L2 tables that there are."""
    entries: Entries
    """Of these tables, one after the other: where the clusters are in their sources."""
    owners: NDArray[np.int32]
    """And in which source."""


def _write(to: int, plan: _Plan, go_on: Callable[[], None]) -> None:
    """Tables first, then the data in the order of the disk."""
    used = plan.used
    data = np.flatnonzero(plan.entries > _ZERO)
    largest = plan.sources[-1]
    l1_entries = largest.l1_entries
    l1_clusters = max(1, -(-l1_entries * 8 // CLUSTER))
    blocks = table = 0
    while True:  # the counts of all clusters need clusters, which are counted too
        total = 1 + table + blocks + l1_clusters + len(used) + len(data)
        needed = -(-total // _COUNTS_PER_BLOCK)
        if (needed, -(-needed * 8 // CLUSTER)) == (blocks, table):
            break
        blocks, table = needed, -(-needed * 8 // CLUSTER)
    l1_at = 1 + table + blocks
    l2_at = l1_at + l1_clusters
    first = l2_at + len(used)

    entries = plan.entries.copy()
    entries[data] = _clusters(first, len(data)) | _COPIED
    l1: Entries = np.zeros(l1_entries, dtype=np.uint64)
    l1[list(used)] = _clusters(l2_at, len(used)) | _COPIED

    os.ftruncate(to, total * CLUSTER)
    _put(to, header(largest.virtual_size, l1_entries, l1_at, table_clusters=table), 0)
    _put(to, _clusters(1 + table, blocks).astype(_BIG).tobytes(), CLUSTER)
    _put(to, np.ones(total, dtype=">u2").tobytes(), (1 + table) * CLUSTER)
    _put(to, l1.astype(_BIG).tobytes(), l1_at * CLUSTER)
    _put(to, entries.astype(_BIG).tobytes(), l2_at * CLUSTER)
    _copy_data(to, first * CLUSTER, plan, data, go_on)


def _clusters(first: int, count: int) -> Entries:
    """The offsets of `count` clusters from the cluster `first` on."""
    return (np.arange(count, dtype=np.uint64) + np.uint64(first)) * np.uint64(CLUSTER)


def _copy_data(
    to: int, position: int, plan: _Plan, data: NDArray[np.intp], go_on: Callable[[], None]
) -> None:
    """Copy the clusters of the entries `data` to `position`, one after the other."""
    offsets, owners = plan.entries[data].astype(np.int64), plan.owners[data]
    breaks = np.flatnonzero((np.diff(offsets) != CLUSTER) | (np.diff(owners) != 0)) + 1
    starts = np.concatenate(([0], breaks, [len(offsets)])).tolist() if len(offsets) else []
    for start, end in pairwise(starts):
        source = plan.sources[int(owners[start])]
        offset, left = int(offsets[start]), (end - start) * CLUSTER
        while left:
            go_on()
            length = min(left, _PIECE)
            _copy(source.descriptor, offset, to, position, min(length, source.size - offset))
            offset, position, left = offset + length, position + length, left - length


def _copy(source: int, offset: int, to: int, position: int, length: int) -> None:
    while length > 0:
        try:
            count = os.copy_file_range(source, to, length, offset, position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            count = os.pwrite(to, os.pread(source, length, offset), position)
        if count == 0:
            raise RuntimeFailure("a disk overlay became shorter while it was read")
        offset, position, length = offset + count, position + count, length - count


def _put(to: int, content: bytes, position: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(to, content[done:], position + done)


def _damaged(path: Path, how: str) -> RuntimeFailure:
    return RuntimeFailure(f"the disk overlay {path} is damaged: {how}")
