"""The seam between where images come from and what is made of them.

async with source.open(blobs, progress) as image:
    image.config, image.diff_ids      # known at once, before any layer is here
    image.begin(3)                    # layers 0 to 2 are cached as disks: the others are wanted
    blob = await image.layer(3)       # while the ones behind it are on their way
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from aenv.errors import AenvError
from aenv.images.blobs import BlobLease, BlobStore
from aenv.images.compression import compression_of
from aenv.images.download import Blob, Content
from aenv.images.models import FetchedImage, FetchProgress, ImageConfig, LayerBlob
from aenv.tasks import cancel


class Source(Protocol):
    """An image somewhere."""

    def open(self, blobs: BlobStore, progress: FetchProgress) -> AbstractAsyncContextManager[OpenImage]:
        """Find the image and read its configuration. What was fetched of it stays until the block ends.

        Raises ImageMissing, ImageUnusable, RegistryUnavailable, NoSpace or StorageFailure.
        """
        ...


class NoProgress:
    """Tells nobody."""

    def layer(self, digest: str, done: int, total: int | None) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Layer:
    """One layer that may not be here yet."""

    blob: Blob
    diff_id: str
    content: Content


@dataclass(frozen=True)
class Description:
    """All that is known of an image before its layers are here."""

    reference: str
    """Where it comes from, in full and with its digest."""
    digest: str
    platform: str
    config: ImageConfig
    layers: tuple[Layer, ...]


class OpenImage:
    """An image whose layers come when they are asked for."""

    def __init__(self, description: Description, lease: BlobLease, progress: FetchProgress) -> None:
        self._description = description
        self._lease = lease
        self._progress = progress
        self._coming: dict[int, asyncio.Task[LayerBlob]] = {}

    @property
    def reference(self) -> str:
        """Where it comes from, in full and with its digest."""
        return self._description.reference

    @property
    def digest(self) -> str:
        """Of its manifest."""
        return self._description.digest

    @property
    def config(self) -> ImageConfig:
        """How it wants to be run."""
        return self._description.config

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of its layers' archives, in the order in which they are applied."""
        return tuple(layer.diff_id for layer in self._description.layers)

    def begin(self, start: int = 0) -> None:
        """Fetch the layers from `start` on, several at a time and the first ones first."""
        for index in range(start, len(self._description.layers)):
            self._begin_one(index)

    async def layer(self, index: int) -> LayerBlob:
        """One layer, as soon as it is here. Its file stays until the image is closed.

        Raises ImageUnusable, RegistryUnavailable, NoSpace or StorageFailure.
        """
        return await asyncio.shield(self._begin_one(index))

    async def fetch(self) -> FetchedImage:
        """All layers. Raises as `layer`; the others are given up then, and what has come of them is kept."""
        self.begin()
        try:
            layers = await asyncio.gather(*(self.layer(index) for index in range(len(self.diff_ids))))
        except BaseException:
            await self.close()
            raise
        about = self._description
        return FetchedImage(about.reference, about.digest, about.platform, about.config, tuple(layers))

    async def close(self) -> None:
        """End what is under way."""
        with suppress(AenvError):  # who wanted that layer was told
            await cancel(*self._coming.values())

    def _begin_one(self, index: int) -> asyncio.Task[LayerBlob]:
        task = self._coming.get(index)
        if task is None:
            task = self._coming[index] = asyncio.ensure_future(self._get(self._description.layers[index]))
        return task

    async def _get(self, layer: Layer) -> LayerBlob:
        blob = layer.blob

        def report(done: int) -> None:
            self._progress.layer(blob.digest, done, blob.size)

        path = await self._lease.get(blob, layer.content, report)
        compression = await asyncio.to_thread(compression_of, path)
        return LayerBlob(blob.digest, layer.diff_id, blob.size, compression, path)


@asynccontextmanager
async def opened(
    description: Description, lease: BlobLease, progress: FetchProgress
) -> AsyncIterator[OpenImage]:
    """An image that is closed with the block."""
    image = OpenImage(description, lease, progress)
    try:
        yield image
    finally:
        await image.close()
