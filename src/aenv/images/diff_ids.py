"""The digest of the archive in a layer's file, for images that don't say it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from aenv.errors import ImageUnusable
from aenv.images.compression import compression_of
from aenv.images.decompress import BadCompression, decompressed
from aenv.images.download import Content, Pieces, in_thread


async def diff_id_of(path: Path) -> str:
    """The digest of what is in the file: seconds for a large one. Raises ImageUnusable if it is damaged."""
    digest = hashlib.sha256()
    async with unpacked(path)(0) as (_, pieces):
        async for piece in pieces:
            await in_thread(digest.update, piece)
    return f"sha256:{digest.hexdigest()}"


def unpacked(path: Path) -> Content:
    """Opens the content of a file, decompressed on the way; from the beginning only."""

    @asynccontextmanager
    async def content(_offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        compression = await asyncio.to_thread(compression_of, path)
        try:
            with await asyncio.to_thread(path.open, "rb") as file:
                yield 0, _from_thread(decompressed(file, compression))
        except BadCompression as error:
            raise ImageUnusable(f"{path} can't be unpacked: {error}") from error

    return content


async def _from_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await in_thread(next, chunks, None)) is not None:
        yield chunk
