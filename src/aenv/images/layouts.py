"""Images in the form of an OCI layout: `oci-layout`, `index.json` and `blobs/`.

Source: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

from typing import Final

from aenv.errors import ImageMissing, ImageUnusable
from aenv.images import manifests
from aenv.images.blobs import BlobLease
from aenv.images.diff_ids import diff_id_of
from aenv.images.download import Blob, digest_of
from aenv.images.files import Files, Part, content_of, read
from aenv.images.manifests import DOCUMENT_BYTES, Descriptor, Index, Manifest, Platform
from aenv.images.partial import WrongContent
from aenv.images.sources import Description, Layer

INDEX: Final = "index.json"
MARK: Final = "oci-layout"
"""Files that every layout has."""
_NAMES: Final = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
"""Annotations that say how an image in a layout is called."""


async def describe(files: Files, tag: str | None, platform: Platform, lease: BlobLease) -> Description:
    """The image in a layout that is called `tag`, or the only one.

    Raises ImageMissing, ImageUnusable, NoSpace or StorageFailure.
    """
    what = str(files.path)
    layout = await _layout(files)
    first = _chosen(layout, tag, platform, what)
    sizes = {first.digest: first.size}

    async def get(digest: str) -> tuple[str, Index | Manifest]:
        document = manifests.parse(await _document(files, Blob(digest, sizes[digest])), "", what)
        if isinstance(document, Index):
            sizes.update({each.digest: each.size for each in document.manifests})
        return digest, document

    digest, manifest = await manifests.find_manifest(get, first.digest, platform, what)
    configuration = manifests.parse_configuration(await _document(files, manifest.config.blob), what)
    manifests.check_platform(configuration, platform, what)
    contents = [content_of(await _part(files, layer.blob)) for layer in manifest.layers]
    blobs = [layer.blob for layer in manifest.layers]
    pairs = zip(blobs, contents, strict=True)
    diff_ids = configuration.diff_ids or [await diff_id_of(await lease.get(*pair)) for pair in pairs]
    if len(diff_ids) != len(blobs):
        raise ImageUnusable(f"{what} is damaged: {len(blobs)} layers, {len(diff_ids)} diff_ids")
    return Description(
        reference=f"{what}@{digest}",
        digest=digest,
        platform=str(platform),
        config=configuration.image_config,
        layers=tuple(map(Layer, blobs, diff_ids, contents)),
    )


async def _layout(files: Files) -> Index:
    part = await files.find(INDEX)
    if part is None:
        raise ImageUnusable(f"{files.path} has no {INDEX}")
    found = manifests.parse(await read(part, DOCUMENT_BYTES), "", str(files.path))
    if not isinstance(found, Index):
        raise ImageUnusable(f"{files.path} has an {INDEX} that is none")
    return found


def _chosen(layout: Index, tag: str | None, platform: Platform, what: str) -> Descriptor:
    images = tuple(each for each in layout.manifests if not each.is_attestation)
    names = sorted({name for each in images for name in _names(each)})
    listed = manifests.shown(", ".join(names))
    if tag is not None:
        images = tuple(each for each in images if any(_is_called(name, tag) for name in _names(each)))
        if not images:
            raise ImageMissing(f"{what} has no image {tag}, but: {listed}")
    elif len(names) > 1 and len(images) > 1:
        raise ImageUnusable(f"{what} has several images: say which of {listed}")
    return manifests.choose(Index(manifests=images), platform, what)


def _names(descriptor: Descriptor) -> list[str]:
    return [descriptor.annotations[name] for name in _NAMES if name in descriptor.annotations]


def _is_called(name: str, tag: str) -> bool:
    """Names in layouts are tags or whole references."""
    return name == tag or name.endswith((f":{tag}", f"/{tag}"))


async def _part(files: Files, blob: Blob) -> Part:
    part = await files.find(f"blobs/{blob.algorithm}/{blob.name}")
    if part is None:
        raise ImageUnusable(f"{files.path} lacks {blob}, which its manifest names")
    if part.size != blob.size:
        raise WrongContent(f"{files.path}: {blob} has {part.size} bytes; {blob.size} were to be expected")
    return part


async def _document(files: Files, blob: Blob) -> bytes:
    data = await read(await _part(files, blob), DOCUMENT_BYTES)
    if digest_of(data, blob.algorithm) != blob.digest:
        raise WrongContent(f"{files.path}: {blob} is damaged")
    return data
