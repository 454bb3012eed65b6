"""Pulls for tests, and what they tell."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import Credentials, FetchedImage
from aenv.images.sources import NoProgress
from tests.images.builder import archive, entry, files

LAYERS = [files({"etc/one": b"1"}), archive([entry("etc/.wh.one"), entry("big", os.urandom(3 << 20))])]


@dataclass
class Heard:
    """Everything that was told of the progress of a fetch."""

    said: list[tuple[str, int, int | None]] = field(default_factory=list)

    def layer(self, digest: str, done: int, total: int | None) -> None:
        """Note it."""
        self.said.append((digest, done, total))


async def pull(
    catalog: ImageCatalog,
    blobs: BlobStore,
    name: str,
    credentials: Credentials | None = None,
    progress: Heard | None = None,
) -> FetchedImage:
    """All of an image; its files may go at once."""
    async with catalog.named(name, credentials).open(blobs, progress or NoProgress()) as opened:
        return await opened.fetch()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen soon."""
    deadline = time.monotonic() + 60  # a busy machine takes long to start a process
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.01)
