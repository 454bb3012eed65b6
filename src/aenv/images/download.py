"""One blob from where it is to a file with its digest as the name, begun where an earlier attempt ended."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from aenv.errors import NoSpace, StorageFailure
from aenv.full import write_failure
from aenv.images.partial import PartialFile, WrongContent
from aenv.images.retries import Attempts, Interrupted, Patience
from aenv.tasks import finish

T = TypeVar("T")

_BATCH: Final = 1 << 20
"""Bytes that are written and hashed at a time."""

Pieces: TypeAlias = AsyncIterator[bytes]
Content: TypeAlias = Callable[[int], AbstractAsyncContextManager[tuple[int, Pieces]]]
"""Opens a blob at an offset. It may come from the beginning all the same, hence the offset in the result.

It raises Interrupted for what may pass, and an AenvError for what will not.
"""
Report: TypeAlias = Callable[[int], None]
"""Hears how many bytes are there."""


@dataclass(frozen=True)
class Blob:
    """What is to be stored."""

    digest: str
    size: int
    """Bytes."""

    @property
    def algorithm(self) -> str:
        """Of the digest, as hashlib names it."""
        return self.digest.partition(":")[0]

    @property
    def name(self) -> str:
        """The digest's digits."""
        return self.digest.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.name[:12]}"


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """The digest of what is in memory."""
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run what blocks in a thread. A cancelled caller waits for it, so that nobody writes behind its back."""
    return await finish(asyncio.to_thread(call, *arguments))


async def download(
    blob: Blob, content: Content, partial: Path, target: Path, *, patience: Patience, report: Report
) -> None:
    """Make `target` from `content`, by way of the file `partial`, which stays if this is interrupted.

    Raises WrongContent if size or digest differ (`partial` is removed), RegistryUnavailable if it breaks too
    often, NoSpace or StorageFailure if it can't be written, and what `content` raises.
    """
    file = PartialFile(partial, blob.algorithm)
    try:
        try:
            await in_thread(file.open)
            await _complete(blob, content, file, patience, report)
            await in_thread(file.publish, target)
        except WrongContent:
            await in_thread(file.remove)
            raise
        finally:
            file.close()
    except OSError as error:
        failure = write_failure(f"storing {blob}", partial.parent, error, StorageFailure)
        if isinstance(failure, NoSpace):  # what is left of it would keep others from their room
            await in_thread(file.remove)
        raise failure from error


async def _complete(
    blob: Blob, content: Content, file: PartialFile, patience: Patience, report: Report
) -> None:
    if file.size > blob.size:
        await in_thread(file.restart)
    resumed = file.size > 0
    await _receive(blob, content, file, patience, report)
    if resumed and file.digest != blob.digest:  # the earlier part may have been damaged on the disk
        await in_thread(file.restart)
        await _receive(blob, content, file, patience, report)
    if file.digest != blob.digest:
        raise WrongContent(f"{blob} is damaged where it comes from: its content has the digest {file.digest}")


async def _receive(
    blob: Blob, content: Content, file: PartialFile, patience: Patience, report: Report
) -> None:
    attempts = Attempts(patience)
    report(file.size)
    while file.size < blob.size:
        before = file.size
        try:
            await _append(blob, content, file, report)
        except Interrupted as error:
            if file.size > before:
                attempts.succeeded()
            await attempts.failed(error)


async def _append(blob: Blob, content: Content, file: PartialFile, report: Report) -> None:
    async with content(file.size) as (start, pieces):
        if start == 0 and file.size > 0:
            await in_thread(file.restart)
        elif start != file.size:
            raise Interrupted(f"{blob} was asked for from byte {file.size} on and came from {start} on")
        async for batch in _batches(pieces):
            if file.size + sum(map(len, batch)) > blob.size:
                raise WrongContent(f"{blob} is longer than the {blob.size} bytes that it was said to have")
            await in_thread(file.write, batch)
            report(file.size)
    if file.size < blob.size:
        raise Interrupted(f"{blob} ended after {file.size} of {blob.size} bytes")


async def _batches(pieces: Pieces) -> AsyncIterator[list[bytes]]:
    """Pieces until they are large enough to be worth a thread; also those before an interruption."""
    batch: list[bytes] = []
    size = 0
    broken: Interrupted | None = None
    try:
        async for piece in pieces:
            batch.append(piece)
            size += len(piece)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    except Interrupted as error:
        broken = error
    if batch:
        yield batch
    if broken is not None:
        raise broken


async def store_unnamed(content: Content, partial: Path, target: Callable[[str], Path]) -> Blob:
    """Store what `content` has, whatever that is, as `target` of its digest. It is read once and not resumed.

    Raises NoSpace or StorageFailure if it can't be written, and what `content` raises.
    """
    file = PartialFile(partial)
    try:
        try:
            await in_thread(file.open)
            async with content(0) as (_, pieces):
                async for batch in _batches(pieces):
                    await in_thread(file.write, batch)
            blob = Blob(file.digest, file.size)
            await in_thread(file.publish, target(blob.digest))
        except BaseException:
            await in_thread(file.remove)
            raise
        finally:
            file.close()
    except OSError as error:
        raise write_failure("storing an image", partial.parent, error, StorageFailure) from error
    return blob
