"""Images on this host: OCI layouts, archives of images, root file systems as tar archives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aenv.errors import ImageMissing, ImageUnusable
from aenv.images import docker_save, layouts
from aenv.images.blobs import BlobLease, BlobStore
from aenv.images.compression import compression_of
from aenv.images.diff_ids import diff_id_of, unpacked
from aenv.images.download import store_unnamed
from aenv.images.files import Files, FolderFiles, Part, content_of, list_archive
from aenv.images.manifests import Platform
from aenv.images.models import FetchProgress, ImageConfig
from aenv.images.sources import Description, Layer, OpenImage, opened

Describe = Callable[[Files, str | None, Platform, BlobLease], Awaitable[Description]]

_MOST_ENTRIES: Final = 5000
"""An archive of images has a few entries for each layer; a root file system has more."""


@dataclass(frozen=True)
class LocalSource:
    """An image at `path`: what form it has is seen when it is opened.

    A folder is an OCI layout, or what `docker save` wrote, unpacked. A tar archive, perhaps compressed with
    gzip or zstd, is one of these, or else a root file system, which is then an image of one layer.
    """

    path: Path
    platform: Platform
    tag: str | None = None
    """Which of several images; None if there is one."""
    is_root: bool = False
    """Take an archive as a root file system, whatever is in it."""

    @asynccontextmanager
    async def open(self, blobs: BlobStore, progress: FetchProgress) -> AsyncIterator[OpenImage]:
        """See `Source`."""
        with blobs.scratch() as scratch:
            async with blobs.lease() as lease:
                description = await self._describe(lease, scratch)
                async with opened(description, lease, progress) as image:
                    yield image

    async def _describe(self, lease: BlobLease, scratch: Path) -> Description:
        if await asyncio.to_thread(self.path.is_dir):
            describe = await _form(FolderFiles(self.path))
            if describe is None:
                raise ImageUnusable(f"{self.path} has no {layouts.INDEX} and no {docker_save.MANIFEST}")
            return await describe(FolderFiles(self.path), self.tag, self.platform, lease)
        if not await asyncio.to_thread(self.path.is_file):
            raise ImageMissing(f"there is no file or folder {self.path}")
        files = None
        if not self.is_root:
            files = await asyncio.to_thread(list_archive, self.path, most=_MOST_ENTRIES)
        describe = await _form(files) if files else None
        if describe is None:
            return await self._root_file_system(lease)
        return await describe(await self._parts(scratch), self.tag, self.platform, lease)

    async def _parts(self, scratch: Path) -> Files:
        """The files of the archive; a compressed one is unpacked, since they are wanted one by one."""
        unpacked_to = None
        if await asyncio.to_thread(compression_of, self.path) != "none":
            await store_unnamed(unpacked(self.path), scratch, lambda _digest: scratch)
            unpacked_to = scratch
        files = await asyncio.to_thread(list_archive, self.path, unpacked_to)
        assert files is not None  # noqa: S101 - there is no limit
        return files

    async def _root_file_system(self, lease: BlobLease) -> Description:
        size = (await asyncio.to_thread(self.path.stat)).st_size
        content = content_of(Part(self.path, 0, size))
        blob, path = await lease.add(content)
        return Description(
            reference=f"{self.path}@{blob.digest}",
            digest=blob.digest,
            platform=str(self.platform),
            config=ImageConfig(),
            layers=(Layer(blob, await diff_id_of(path), content),),
        )


async def _form(files: Files) -> Describe | None:
    """What reads an image of this form; None if it is none."""
    if await files.find(layouts.MARK) and await files.find(layouts.INDEX):
        return layouts.describe
    return docker_save.describe if await files.find(docker_save.MANIFEST) else None
