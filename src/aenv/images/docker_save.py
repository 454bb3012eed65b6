"""Images as `docker save` writes them: `manifest.json`, a configuration, a file for each layer.

Source: https://github.com/moby/docker-image-spec, "Combined Image JSON + Filesystem Changeset Format". From
version 25 on these archives are OCI layouts as well, and are read as such.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from aenv.errors import ImageMissing, ImageUnusable
from aenv.images import manifests
from aenv.images.blobs import BlobLease
from aenv.images.compression import HEAD_BYTES, compression_by_head
from aenv.images.diff_ids import diff_id_of
from aenv.images.download import Blob, digest_of
from aenv.images.files import Files, Part, content_of, head, read
from aenv.images.manifests import DOCUMENT_BYTES, MOST_LAYERS, Platform
from aenv.images.sources import Description, Layer

MANIFEST: Final = "manifest.json"


class _Saved(BaseModel):
    config: str = Field(alias="Config")
    tags: Annotated[list[str], BeforeValidator(lambda given: given or [])] = Field([], alias="RepoTags")
    layers: list[str] = Field(alias="Layers", max_length=MOST_LAYERS)


_LIST: Final = TypeAdapter(list[_Saved])


async def describe(files: Files, tag: str | None, platform: Platform, lease: BlobLease) -> Description:
    """The image in an archive that is called `tag`, or the only one.

    Raises ImageMissing, ImageUnusable, NoSpace or StorageFailure.
    """
    what = str(files.path)
    saved = _chosen(await _listing(files), tag, what)
    data = await read(await _part(files, saved.config), DOCUMENT_BYTES)
    configuration = manifests.parse_configuration(data, what)
    manifests.check_platform(configuration, platform, what)
    diff_ids = configuration.diff_ids
    if diff_ids and len(diff_ids) != len(saved.layers):
        raise ImageUnusable(f"{what} is damaged: {len(saved.layers)} layers, {len(diff_ids)} diff_ids")
    layers = [
        await _layer(await _part(files, name), diff_ids[index] if diff_ids else None, lease)
        for index, name in enumerate(saved.layers)
    ]
    digest = digest_of(data)  # there is no manifest: docker calls images by their configurations, too
    return Description(
        reference=f"{what}@{digest}",
        digest=digest,
        platform=str(platform),
        config=configuration.image_config,
        layers=tuple(layers),
    )


async def _listing(files: Files) -> list[_Saved]:
    data = await read(await _part(files, MANIFEST), DOCUMENT_BYTES)
    try:
        return _LIST.validate_json(data)
    except ValidationError as error:
        raise ImageUnusable(f"{files.path} has a {MANIFEST} that can't be read") from error


def _chosen(saved: list[_Saved], tag: str | None, what: str) -> _Saved:
    names = manifests.shown(", ".join(name for each in saved for name in each.tags) or "none with a name")
    if tag is not None:
        saved = [each for each in saved if any(name == tag or name.endswith(f":{tag}") for name in each.tags)]
    if not saved:
        raise ImageMissing(f"{what} has no image {tag or ''}, but: {names}")
    if len(saved) > 1:
        raise ImageUnusable(f"{what} has several images: say which of {names}")
    return saved[0]


async def _part(files: Files, name: str) -> Part:
    part = await files.find(name)
    if part is None:
        raise ImageUnusable(f"{files.path} lacks {name[:200]!r}, which its {MANIFEST} names")
    return part


async def _layer(part: Part, diff_id: str | None, lease: BlobLease) -> Layer:
    """A layer of which the digest is known only if it isn't compressed."""
    content = content_of(part)
    if diff_id is not None and compression_by_head(await head(part, HEAD_BYTES)) == "none":
        return Layer(Blob(diff_id, part.size), diff_id, content)
    blob, path = await lease.add(content)
    return Layer(blob, diff_id or await diff_id_of(path), content)
