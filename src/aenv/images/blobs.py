"""Blobs of images on this host: manifests, configurations and layers, each file named by its digest.

Below the store's folder:

    <algorithm>/<digest>  complete and verified; the modification time says when it was used last
    partial/<digest>   what has come so far; a later attempt goes on from there
    partial/.tmp-…     of this process only: what has no digest yet, and what is about to be removed

What nobody holds is removed when the store is larger than it may be, the longest unused first. One process
at a time may use a folder.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from aenv.errors import AenvError, NoSpace, StorageFailure
from aenv.full import free_bytes, write_failure
from aenv.images.download import Blob, Content, Pieces, digest_of, download, in_thread, store_unnamed
from aenv.images.partial import WrongContent
from aenv.images.retries import Patience
from aenv.tasks import cancel

log = structlog.get_logger()

Listener: TypeAlias = Callable[[int], None]
"""Hears how many bytes of a blob are here."""

_PARTIAL: Final = "partial"
_FOLDERS: Final = ("sha256", "sha512", _PARTIAL)
_TEMPORARY: Final = ".tmp-"
_MOST_DOWNLOADS: Final = 32
_MARGIN: Final = 64 << 20
"""Bytes of the disk that a download leaves free."""


@dataclass
class _Flight:
    """A download under way, and who waits for it."""

    task: asyncio.Task[None]
    listeners: list[Listener] = field(default_factory=list)
    waiting: int = 0
    ending: bool = False


@dataclass(frozen=True)
class _Stored:
    path: Path
    digest: str
    size: int
    used_at: float


class BlobStore:
    """Gets blobs and keeps them, at most about `max_bytes` of them. Call `open` first."""

    def __init__(
        self, folder: Path, *, max_bytes: int, downloads: int = 4, patience: Patience | None = None
    ) -> None:
        """`downloads` of one lease run at once, and 32 of all together.

        So a registry that is slow or stands still holds up its own images only.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._downloads = downloads
        self._turns = asyncio.Semaphore(_MOST_DOWNLOADS)
        self._patience = patience or Patience()
        self._held: Counter[str] = Counter()
        self._flights: dict[str, _Flight] = {}
        self._eviction = asyncio.Lock()

    async def open(self) -> None:
        """Make the folder and remove what a killed process left. Raises StorageFailure."""
        try:
            await asyncio.to_thread(self._prepare)
        except OSError as error:
            raise write_failure(
                "preparing the store of layers", self._folder, error, StorageFailure
            ) from error

    def _prepare(self) -> None:
        for name in _FOLDERS:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        for left in (self._folder / _PARTIAL).glob(f"{_TEMPORARY}*"):
            left.unlink()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[BlobLease]:
        """Blobs that are got through the lease stay until the block ends."""
        held: set[str] = set()
        try:
            yield BlobLease(self, held, asyncio.Semaphore(self._downloads))
        finally:
            self._held.subtract(held)
            self._held += Counter()  # drops what nobody holds any more
            await self._shrink(self._max_bytes)

    async def give_up(self) -> None:
        """Remove everything that nobody holds, for the disk is full."""
        await self._shrink(0)

    def hold(self, digest: str, held: set[str]) -> None:
        """Keep a blob, here already or not, from being removed; `held` is a lease's own list."""
        if digest not in held:
            held.add(digest)
            self._held[digest] += 1

    def path(self, digest: str) -> Path:
        """Where the blob is, if it is here."""
        algorithm, _, name = digest.partition(":")
        return self._folder / algorithm / name

    async def find(self, digest: str) -> Path | None:
        """The file of a blob that is here; it counts as used now. To be held by the caller."""
        path = self.path(digest)
        return path if await asyncio.to_thread(_touch, path) else None

    async def obtain(
        self, blob: Blob, content: Content, listener: Listener, turns: asyncio.Semaphore
    ) -> Path:
        """The file of `blob`, from `content` if it isn't here. To be held by the caller, who has `turns`.

        Callers that want the same blob share one download; if it fails for the one whose `content` it is, the
        next one tries with its own.
        """
        while True:
            found = await self.find(blob.digest)
            if found is not None:
                listener(blob.size)
                return found
            flight = self._flights.get(blob.digest)
            if flight is not None and flight.ending:
                await asyncio.wait([flight.task])
                continue
            mine = flight is None
            flight = flight or self._start(blob, content, turns)
            try:
                await self._join(flight, listener)
            except AenvError:
                if mine:
                    raise

    def _start(self, blob: Blob, content: Content, turns: asyncio.Semaphore) -> _Flight:
        flight = _Flight(asyncio.ensure_future(self._download(blob, content, turns)))
        self._flights[blob.digest] = flight
        flight.task.add_done_callback(lambda _: self._flights.pop(blob.digest))
        return flight

    async def _join(self, flight: _Flight, listener: Listener) -> None:
        """Wait for a download; the last one who leaves before its end ends it."""
        flight.listeners.append(listener)
        flight.waiting += 1
        try:
            await asyncio.shield(flight.task)
        finally:
            flight.listeners.remove(listener)
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                flight.ending = True
                with suppress(AenvError):  # it failed just now, and nobody is left to hear of it
                    await cancel(flight.task)

    async def _download(self, blob: Blob, content: Content, turns: asyncio.Semaphore) -> None:
        partial = self._folder / _PARTIAL / blob.name

        def report(done: int) -> None:
            for listener in self._flights[blob.digest].listeners:
                listener(done)

        async with turns, self._turns:
            await self._make_room(blob, partial)
            await download(
                blob, content, partial, self.path(blob.digest), patience=self._patience, report=report
            )
        await self._shrink(self._max_bytes)

    async def _make_room(self, blob: Blob, partial: Path) -> None:
        """Remove other blobs if the disk has no room for this one. Raises NoSpace if that isn't enough."""
        wanted = blob.size + _MARGIN - await asyncio.to_thread(_size, partial)
        lacking = wanted - await asyncio.to_thread(free_bytes, self._folder)
        if lacking > 0:
            stored = await asyncio.to_thread(self._scan)
            await self._shrink(sum(each.size for each in stored) - lacking)
            if await asyncio.to_thread(free_bytes, self._folder) < wanted:
                raise NoSpace(
                    f"storing {blob}: the host's disk has no room for its {blob.size} bytes; "
                    f"make room on the file system of {self._folder}"
                )

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A name in the store's folder for a file of the caller's, which is removed with the block."""
        path = self._folder / _PARTIAL / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    async def _shrink(self, limit: int) -> None:
        """Remove what is used by nobody, the coldest first, until at most `limit` bytes are left."""
        async with self._eviction:
            try:
                await self._remove_coldest(limit)
            except OSError as error:  # what was wanted of the store was done all the same
                log.error("the store of layers can't be made smaller", error=str(error))

    async def _remove_coldest(self, limit: int) -> None:
        stored = await asyncio.to_thread(self._scan)
        excess = sum(each.size for each in stored) - limit
        for each in sorted(stored, key=lambda one: one.used_at):
            if excess <= 0:
                break
            if self._held[each.digest] or each.digest in self._flights:
                continue
            # The name goes at once, so that whoever looks from now on doesn't find it.
            with self.scratch() as doomed, suppress(FileNotFoundError):
                each.path.rename(doomed)
                await in_thread(doomed.unlink)
            excess -= each.size

    def _scan(self) -> list[_Stored]:
        """Every blob, whole or not, without looking into them. Blocking."""
        found = []
        for name in _FOLDERS:
            for path in (self._folder / name).iterdir():
                if not path.name.startswith(_TEMPORARY):
                    with suppress(FileNotFoundError):
                        seen = path.stat()
                        algorithm = name if name != _PARTIAL else _algorithm(path.name)
                        found.append(_Stored(path, f"{algorithm}:{path.name}", seen.st_size, seen.st_mtime))
        return found


@dataclass(frozen=True)
class BlobLease:
    """Gets blobs that stay as long as it lasts."""

    store: BlobStore
    _held: set[str]
    _turns: asyncio.Semaphore

    async def find(self, digest: str) -> Path | None:
        """The file of a blob if it is here."""
        self.store.hold(digest, self._held)
        return await self.store.find(digest)

    async def get(self, blob: Blob, content: Content, listener: Listener = lambda _done: None) -> Path:
        """The file of `blob`, downloaded from `content` if it isn't here; `listener` hears how far it is.

        Raises WrongContent, RegistryUnavailable, NoSpace, StorageFailure, and what `content` raises.
        """
        self.store.hold(blob.digest, self._held)
        return await self.store.obtain(blob, content, listener, self._turns)

    async def document(self, digest: str) -> bytes | None:
        """The bytes of a small blob if it is here. One that was damaged on the disk since is removed."""
        path = await self.find(digest)
        if path is None:
            return None
        data = await asyncio.to_thread(path.read_bytes)
        if digest_of(data, digest.partition(":")[0]) == digest:
            return data
        await asyncio.to_thread(path.unlink)
        return None

    async def read(self, blob: Blob, content: Content, limit: int) -> bytes:
        """The bytes of a small blob. Raises WrongContent if it is larger than `limit`, and as `get`."""
        if blob.size > limit:
            raise WrongContent(f"{blob} has {blob.size} bytes, and no more than {limit} are allowed for it")
        data = await self.document(blob.digest)
        if data is None:
            path = await self.get(blob, content)
            data = await asyncio.to_thread(path.read_bytes)
        return data

    async def keep(self, blob: Blob, data: bytes) -> None:
        """Store a small blob that is in memory. Raises as `get`."""

        @asynccontextmanager
        async def content(_offset: int) -> AsyncIterator[tuple[int, Pieces]]:
            yield 0, _one(data)

        await self.get(blob, content)

    async def add(self, content: Content) -> tuple[Blob, Path]:
        """Store what has no digest yet, such as a file of the user's.

        Raises NoSpace, StorageFailure, and what `content` raises.
        """

        def target(digest: str) -> Path:
            self.store.hold(digest, self._held)
            return self.store.path(digest)

        with self.store.scratch() as partial:
            blob = await store_unnamed(content, partial, target)
        return blob, self.store.path(blob.digest)


async def _one(data: bytes) -> Pieces:
    yield data


def _touch(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _algorithm(name: str) -> str:
    """Of a digest of which only the digits are known."""
    return "sha256" if len(name) == 64 else "sha512"
