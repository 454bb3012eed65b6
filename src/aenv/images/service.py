"""Images by name, as disks that sandboxes can start from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.convert import Converter
from aenv.images.models import Credentials, FetchProgress, ImageConfig
from aenv.images.sources import NoProgress, Source
from aenv.runtimes.base import Capture, Resources


@dataclass(frozen=True)
class Image:
    """A container image as a disk, and how it wants to be run."""

    reference: str
    """Where it came from, in full and with its digest."""
    config: ImageConfig
    key: str
    """Of the disk, in the cache: equal for equal disks."""
    capture: Capture


class ImageService:
    """Pulls and converts images; what was done once, for whichever image, isn't done again."""

    def __init__(
        self, catalog: ImageCatalog, blobs: BlobStore, converter: Converter, resources: Resources
    ) -> None:
        """`resources` are what a machine has that is booted from an image, unless somebody says otherwise."""
        self._catalog = catalog
        self._blobs = blobs
        self._converter = converter
        self._resources = resources

    def local(self, path: Path, *, tag: str | None = None, is_root: bool = False) -> Source:
        """The image in a file of this host; see `ImageCatalog.local`."""
        return self._catalog.local(path, tag=tag, is_root=is_root)

    async def get(
        self,
        image: str | Source,
        credentials: Credentials | None = None,
        say: Callable[[str], None] = lambda _line: None,
        *,
        keep: ExitStack,
        disk_mib: int | None = None,
        progress: FetchProgress | None = None,
    ) -> Image:
        """An image by its name on a registry, or from elsewhere; its disk is kept until `keep` is closed.

        The registry is always asked what the name stands for. `say` gets lines that tell what is being done,
        `progress` hears of each layer that is fetched. The disk has `disk_mib` MiB, or as many as the server
        is set to. If it fails or is cancelled, what was finished is there for the next try.

        Raises ImageMissing, ImageUnusable, RegistryUnavailable, InvalidRequest, HostNotReady, NoSpace,
        StorageFailure or RuntimeFailure.
        """
        source = self._catalog.named(image, credentials) if isinstance(image, str) else image
        async with source.open(self._blobs, progress or NoProgress()) as opened:
            say(f"image {opened.reference}")
            made = await self._converter.convert(opened, keep, disk_mib=disk_mib, say=say)
            resources = replace(self._resources, disk_mib=made.capture.resources.disk_mib)
            capture = replace(made.capture, resources=resources)
            return Image(opened.reference, opened.config, made.key, capture)

    async def give_up(self) -> None:
        """Remove what was downloaded and nobody needs now, for the disk is full."""
        await self._blobs.give_up()
