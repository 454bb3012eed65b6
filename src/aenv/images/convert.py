"""An image's layers become a chain of disks, each cached under the key of what it was made from.

Images whose first layers are the same share the disks of these, as they share the downloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aenv.disks.edits import Edit
from aenv.errors import ImageUnusable, InvalidRequest
from aenv.images import ext4, provision
from aenv.images.models import LayerBlob
from aenv.runtimes.base import Capture, Runtime
from aenv.snapshots.disk_cache import DiskCache, key_over

_FORMAT: Final = "1"
"""Belongs to all keys: to be changed when a layer would be unpacked to something else."""
_ALONE: Final = 16
_TOGETHER: Final = 8
"""An image of 128 layers, docker's most, is then a chain of 30 disks."""
_UNPACK: Final = "aenv.images.unpack:apply_layer"
_PROVISION: Final = "aenv.images.provision:provision"

Say = Callable[[str], None]
Make = Callable[[Path], Awaitable[Capture]]


class LayeredImage(Protocol):
    """An image whose layers come when they are wanted."""

    @property
    def reference(self) -> str:
        """Where it comes from, in full."""

    @property
    def diff_ids(self) -> Sequence[str]:
        """The digests of its layers' archives, in the order in which they are applied."""

    def begin(self, start: int = 0) -> None:
        """Fetch the layers from `start` on."""

    async def layer(self, index: int) -> LayerBlob:
        """One layer, as soon as it is here."""


@dataclass(frozen=True)
class ConvertedImage:
    """A disk that can be booted from."""

    key: str
    capture: Capture


@dataclass(frozen=True)
class _Step:
    """One disk of the chain: its key, and what makes it of the one before."""

    key: str
    what: str
    layers: tuple[int, ...] = ()
    disk_mib: int | None = None


class Converter:
    """Makes disks of images, of `disk_mib` MiB unless more is asked for."""

    def __init__(self, runtime: Runtime, disks: DiskCache, disk_mib: int) -> None:
        self._runtime = runtime
        self._disks = disks
        self._disk_mib = disk_mib

    async def convert(
        self, image: LayeredImage, stack: ExitStack, *, disk_mib: int | None = None, say: Say
    ) -> ConvertedImage:
        """The disk of an image, provisioned; only layers are fetched whose disks aren't cached.

        The disks are kept until the `stack` is closed. If it fails or is cancelled, the layers that were done
        stay cached. Raises ImageUnusable, which names the layer, if it can't be unpacked or is too large for
        the disk, InvalidRequest for a disk that is too small, and what `Runtime.edit_disk`,
        `LayeredImage.layer` and `DiskCache` do.
        """
        steps = self._steps(image, disk_mib)
        stack.enter_context(self._disks.kept(*(step.key for step in steps)))
        start, capture = await self._cached(steps)
        wanted = [index for step in steps[start:] for index in step.layers]
        if wanted:
            image.begin(wanted[0])
        for step in steps[start:]:
            capture = await self._disks.obtain(step.key, self._maker(image, step, capture, say))
        assert capture is not None  # noqa: S101 - there is at least the step of provisioning
        return ConvertedImage(steps[-1].key, capture)

    def _steps(self, image: LayeredImage, disk_mib: int | None) -> list[_Step]:
        key = key_over("", "image", _FORMAT, *ext4.RECIPE, self._runtime.name, str(self._disk_mib))
        steps = []
        for layers in _groups(len(image.diff_ids)):
            key = key_over(key, "layers", *(image.diff_ids[index] for index in layers))
            steps.append(_Step(key, "", layers))
        key = key_over(key, "provision", provision.VERSION)
        steps.append(_Step(key, "adding what sandboxes need"))
        if disk_mib is not None and disk_mib != self._disk_mib:
            if disk_mib < self._disk_mib:
                raise InvalidRequest(
                    f"disks of images have at least {self._disk_mib} MiB, the server's AENV_DISK_MIB: "
                    f"{disk_mib} is too little"
                )
            key = key_over(key, "size", str(disk_mib))
            steps.append(_Step(key, f"growing the disk to {disk_mib} MiB", disk_mib=disk_mib))
        return steps

    async def _cached(self, steps: Sequence[_Step]) -> tuple[int, Capture | None]:
        """From which step on there is something to do, and the disk of the one before."""
        for index in range(len(steps), 0, -1):
            if (capture := await self._disks.get(steps[index - 1].key)) is not None:
                return index, capture
        return 0, None

    def _maker(self, image: LayeredImage, step: _Step, below: Capture | None, say: Say) -> Make:
        async def make(folder: Path) -> Capture:
            if step.what:
                say(step.what)
            edits = [await self._unpacking(image, index, say) for index in step.layers]
            if not edits and step.disk_mib is None:
                edits = [Edit(_PROVISION)]
            disk_mib = step.disk_mib or self._disk_mib
            try:
                return await self._runtime.edit_disk(below, folder, edits, disk_mib=disk_mib, say=say)
            except InvalidRequest as error:
                raise ImageUnusable(f"{image.reference}: {error.message}") from error

        return make

    async def _unpacking(self, image: LayeredImage, index: int, say: Say) -> Edit:
        """The edit that applies a layer, once that is here."""
        blob = await image.layer(index)
        name = f"layer {index + 1} of {len(image.diff_ids)} ({blob.digest})"
        say(f"unpacking {name}")
        arguments = {"compression": blob.compression, "diff_id": blob.diff_id}
        return Edit(_UNPACK, arguments, {"file": blob.path}, name)


def _groups(count: int) -> Iterator[tuple[int, ...]]:
    """Which layers become one disk: as a rule each, but several above the first, since chains have an end."""
    for start in range(min(count, _ALONE)):
        yield (start,)
    for start in range(_ALONE, count, _TOGETHER):
        yield tuple(range(start, min(start + _TOGETHER, count)))
