"""Disks that can be made again, by what they were made from: layers of images, results of build steps.

Each is a recorded capture without memory. It is kept until the whole cache takes more than it may; then
those go that were used least lately. What else was started from one keeps the layers that it needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from aenv.database import Database
from aenv.errors import NoSpace, RuntimeFailure, StorageFailure
from aenv.runtimes.base import Capture
from aenv.snapshots.captures import Captures
from aenv.tasks import KeyedLocks, finish

log = structlog.get_logger()


def key_over(parent: str, *what: str) -> str:
    """The key of what comes of the disk with the key `parent` (or of nothing, if that is empty) by `what`."""
    digest = hashlib.sha256()
    for part in (parent, *what):
        content = part.encode(errors="surrogateescape")
        digest.update(b"%d:%b" % (len(content), content))  # no two lists of parts look the same
    return digest.hexdigest()


@dataclass(frozen=True)
class _Entry:
    key: str
    layers: frozenset[str]
    """Those that nothing but the cache names: they go with it."""


class DiskCache:
    """The cached disks of one node; they take `most_bytes` on the host's disk, or a little more for a while.

    What `get` and `obtain` answer with is sure to stay only within a block of `kept`, entered before.
    """

    def __init__(self, database: Database, captures: Captures, home: Path, most_bytes: int) -> None:
        self._database = database
        self._captures = captures
        self._home = home
        self._most_bytes = most_bytes
        self._making = KeyedLocks()
        self._evicting = asyncio.Lock()
        self._kept: Counter[str] = Counter()

    @contextmanager
    def kept(self, *keys: str) -> Iterator[None]:
        """Keep what has one of `keys`, now or later, as long as the block lasts."""
        self._kept.update(keys)
        try:
            yield
        finally:
            self._kept.subtract(keys)
            self._kept = +self._kept

    @asynccontextmanager
    async def making(self, key: str) -> AsyncIterator[None]:
        """Be the only one who makes the disk with this key; it is kept meanwhile.

        Others wait; when their turn comes they look with `get` whether it is there.
        """
        with self.kept(key):
            async with self._making.hold(key):
                yield

    async def get(self, key: str) -> Capture | None:
        """The disk with this key, which now counts as used; None if there is none, or it is damaged."""

        def look_up(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                "UPDATE cached_disks SET used_at = ? WHERE key = ? RETURNING capture_id", (time.time(), key)
            ).fetchone()
            return None if row is None else str(row[0])

        capture_id = await self._database.run(look_up)
        if capture_id is None:
            return None
        try:
            return await self._captures.get(capture_id)
        except RuntimeFailure as error:
            log.warning("a cached disk is damaged and will be made again", key=key, error=str(error))
            gone = "DELETE FROM cached_disks WHERE key = ? AND capture_id = ?"
            await self._database.run(lambda c: c.execute(gone, (key, capture_id)))
            return None

    async def put(self, key: str, capture_id: str, capture: Capture) -> None:
        """Record a capture without memory, made in a folder of `Captures.new`, as the disk with this key.

        It is durable then, and the coldest disks make room. Raises StorageFailure, OSError; the capture's
        folder is then removed. Cancelled, it is all the same done.
        """
        await finish(self._put(key, capture_id, capture))

    async def obtain(self, key: str, make: Callable[[Path], Awaitable[Capture]]) -> Capture:
        """The disk with this key; if there is none, `make` makes it in a new folder, once for all who ask.

        On a full disk it is tried once more, without the other disks that nobody keeps. If it fails or is
        cancelled, nothing is left, and the next who waits tries it.
        """
        async with self.making(key):
            if (found := await self.get(key)) is not None:
                return found
            try:
                capture_id, capture = await self._make(make)
            except NoSpace:
                await self.give_up()
                capture_id, capture = await self._make(make)
            await self.put(key, capture_id, capture)
            return capture

    async def _make(self, make: Callable[[Path], Awaitable[Capture]]) -> tuple[str, Capture]:
        capture_id, folder = self._captures.new()
        try:
            return capture_id, await make(folder)
        except BaseException:
            await finish(self._captures.discard(capture_id))
            raise

    async def _put(self, key: str, capture_id: str, capture: Capture) -> None:
        def record(connection: sqlite3.Connection) -> None:
            now = time.time()
            self._captures.insert(connection, capture_id, capture)
            connection.execute(
                "INSERT OR REPLACE INTO cached_disks (key, capture_id, created_at, used_at) "
                "VALUES (?, ?, ?, ?)",
                (key, capture_id, now, now),
            )

        try:
            await self._captures.sync(capture)
            await self._database.run(record)
        except BaseException:
            await self._captures.discard(capture_id)
            raise
        await self._shrink(self._most_bytes)

    async def give_up(self) -> None:
        """Forget all disks that nobody keeps, as the host's disk is full."""
        await self._shrink(0)

    async def _shrink(self, most_bytes: int) -> None:
        """Forget the coldest disks that nobody keeps until the rest takes no more than that."""
        try:
            await self._evict(most_bytes)
        except StorageFailure as error:
            log.error("cached disks can't be removed now", error=str(error))

    async def _evict(self, most_bytes: int) -> None:
        async with self._evicting:
            entries = await self._database.run(_entries)
            cold = await asyncio.to_thread(self._too_many, entries, most_bytes)

            def forget(connection: sqlite3.Connection) -> int:
                # Looked at here: a block of `kept` that began before its `get` is seen.
                keys = [key for key in cold if not self._kept[key]]
                connection.executemany("DELETE FROM cached_disks WHERE key = ?", [(key,) for key in keys])
                return len(keys)

            if cold and (count := await self._database.run(forget)):
                log.info("cached disks were removed to make room", count=count)
                await self._captures.collect()

    def _too_many(self, entries: Sequence[_Entry], most_bytes: int) -> list[str]:
        """The keys to forget of `entries`, coldest first.

        One that others stand on frees nothing before they go.
        """
        left = [entry for entry in entries if not self._kept[entry.key]]
        users = Counter(layer for entry in entries for layer in entry.layers)
        sizes = {layer: self._blocks(layer) for layer in users}
        total = sum(sizes.values())
        cold: list[str] = []
        while total > most_bytes:
            for entry in left:
                freed = sum(sizes[layer] for layer in entry.layers if users[layer] == 1)
                if freed:
                    break
            else:
                break
            left.remove(entry)
            cold.append(entry.key)
            users.subtract(entry.layers)
            total -= freed
        return cold

    def _blocks(self, layer: str) -> int:
        try:
            return (self._home / layer).stat().st_blocks * 512
        except OSError:
            return 0  # it is found missing when it is needed


def _entries(connection: sqlite3.Connection) -> list[_Entry]:
    """All cached disks; coldest first, and what stands on another before that one."""
    query = """
        SELECT cached.key, layers.path FROM cached_disks AS cached
        JOIN capture_layers AS layers ON layers.capture_id = cached.capture_id
        ORDER BY cached.used_at, cached.created_at DESC, cached.key
    """
    elsewhere = """
        SELECT DISTINCT path FROM capture_layers
        WHERE capture_id NOT IN (SELECT capture_id FROM cached_disks)
    """
    others = {row[0] for row in connection.execute(elsewhere)}
    layers: dict[str, set[str]] = {}
    for key, path in connection.execute(query):
        layers.setdefault(key, set()).update({path} - others)
    return [_Entry(key, frozenset(paths)) for key, paths in layers.items()]
