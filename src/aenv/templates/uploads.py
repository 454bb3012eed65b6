"""Archives that clients upload for COPY, found by the hash that the client computed over their files."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from aenv import ids
from aenv.durable import sync
from aenv.errors import InvalidRequest, StorageFailure
from aenv.full import write_failure

log = structlog.get_logger()

_BATCH = 1 << 20
"""Bytes that are written at a time."""


class Uploads:
    """The archives in one folder, which take at most `most_bytes`; the coldest go.

    A client names an archive by a hash of its own over the files, which nobody here can check.
    """

    def __init__(self, folder: Path, *, most_bytes: int, most_each: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self.most_each = most_each
        """Bytes of one archive."""
        self._used: Counter[str] = Counter()

    async def start(self) -> None:
        """Make the folder and remove what uploads that were cut off have left. Raises StorageFailure."""

        def clean() -> None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.glob("*.part"):
                path.unlink(missing_ok=True)

        try:
            await asyncio.to_thread(clean)
        except OSError as error:
            raise StorageFailure(f"{self._folder} can't be used: {error}") from error

    async def has(self, files_hash: str) -> bool:
        """Whether the archive is here; it then counts as used."""

        def touch() -> bool:
            with suppress(FileNotFoundError):
                os.utime(self._path(files_hash))
                return True
            return False

        return await asyncio.to_thread(touch)

    @contextmanager
    def using(self, files_hash: str) -> Iterator[Path]:
        """The file of an archive, which stays for the time of the block. It may not be there."""
        self._used[files_hash] += 1
        try:
            yield self._path(files_hash)
        finally:
            self._used[files_hash] -= 1

    async def discard(self, files_hash: str) -> None:
        """Remove an archive that is of no use, so that it is asked for again."""
        await asyncio.to_thread(self._path(files_hash).unlink, missing_ok=True)

    async def put(self, files_hash: str, content: AsyncIterable[bytes]) -> None:
        """Keep an archive, in the place of one with the same hash. What is cut off leaves nothing.

        Raises InvalidRequest if it is too large, NoSpace, StorageFailure.
        """
        part = self._folder / f"{ids.new_capture_id()}.part"
        try:
            await self._receive(part, content)
            await asyncio.to_thread(_publish, part, self._path(files_hash))
        except OSError as error:
            what = "an upload can't be kept"
            raise write_failure(what, self._folder, error, StorageFailure) from error
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        await asyncio.to_thread(self._evict)

    async def _receive(self, part: Path, content: AsyncIterable[bytes]) -> None:
        size, batch = 0, bytearray()
        file = await asyncio.to_thread(part.open, "wb")
        try:
            async for chunk in content:
                size += len(chunk)
                if size > self.most_each:
                    raise InvalidRequest(f"the archive is larger than {self.most_each >> 20} MiB")
                batch += chunk
                if len(batch) >= _BATCH:
                    await asyncio.to_thread(file.write, bytes(batch))
                    batch.clear()
            await asyncio.to_thread(file.write, bytes(batch))
        finally:
            await asyncio.to_thread(file.close)

    def _evict(self) -> None:
        """Remove the coldest archives until the rest is no more than may be. Blocking."""
        found = []
        for path in self._folder.glob("*.tar"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_blocks * 512, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found)[:-1]:  # never the one that just came
            if total <= self._most_bytes:
                return
            if not self._used[path.stem]:
                path.unlink(missing_ok=True)
                total -= size
                log.info("an uploaded archive was removed to make room", archive=path.stem)

    def _path(self, files_hash: str) -> Path:
        return self._folder / f"{files_hash}.tar"


def _publish(part: Path, target: Path) -> None:
    sync(part)
    part.replace(target)
    sync(target.parent)
