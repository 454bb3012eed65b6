"""Makes images for tests: archives, layers, manifests, indexes, as bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard

from aenv.images.models import Compression

Json = dict[str, Any]

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"

_OCI_LAYER = {
    "none": "application/vnd.oci.image.layer.v1.tar",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
_DOCKER_LAYER = {
    "none": "application/vnd.docker.image.rootfs.diff.tar",
    "gzip": "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "zstd": "application/vnd.docker.image.rootfs.diff.tar.zstd",
}


def compress(data: bytes, compression: Compression) -> bytes:
    """The same, compressed."""
    match compression:
        case "gzip":
            return gzip.compress(data, 1, mtime=0)
        case "zstd":
            return zstandard.ZstdCompressor().compress(data)
        case "none":
            return data


def decompress(data: bytes, compression: Compression) -> bytes:
    """What was compressed."""
    match compression:
        case "gzip":
            return gzip.decompress(data)
        case "zstd":
            return zstandard.ZstdDecompressor().decompress(data)
        case "none":
            return data


def digest_of(data: bytes) -> str:
    """`sha256:…`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def entry(
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    link: str = "",
    owner: tuple[int, int] = (0, 0),
    device: tuple[int, int] = (0, 0),
    mtime: float = 1_700_000_000,
    pax: Mapping[str, str] | None = None,
) -> tuple[tarfile.TarInfo, bytes]:
    """One member of an archive, a regular file unless `kind` is another of tarfile's types."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size, info.mtime = kind, mode, link, len(content), mtime
    info.uid, info.gid = owner
    info.devmajor, info.devminor = device
    info.pax_headers = dict(pax or {})
    return info, content


def archive(entries: Iterable[tuple[tarfile.TarInfo, bytes]], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive of these members, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def files(contents: Mapping[str, bytes]) -> bytes:
    """An archive of regular files."""
    return archive(entry(name, content) for name, content in contents.items())


@dataclass(frozen=True)
class Document:
    """A manifest or an index, with everything below it."""

    data: bytes
    media_type: str
    blobs: Mapping[str, bytes] = field(repr=False)
    """Configurations and layers by digest."""
    children: tuple[Document, ...] = ()
    platform: Mapping[str, str] | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    """Digests, for a manifest."""

    @property
    def digest(self) -> str:
        """Of the document itself."""
        return digest_of(self.data)

    @property
    def descriptor(self) -> Json:
        """What an index says of it."""
        said: Json = {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}
        if self.platform is not None:
            said["platform"] = dict(self.platform)
        if self.annotations:
            said["annotations"] = dict(self.annotations)
        return said

    def all_blobs(self) -> dict[str, bytes]:
        """Its own and those of everything below it, documents included."""
        found = {self.digest: self.data, **self.blobs}
        for child in self.children:
            found |= child.all_blobs()
        return found


def image(
    archives: Sequence[bytes],
    *,
    compression: Compression | Sequence[Compression] = "gzip",
    architecture: str = "amd64",
    variant: str | None = None,
    config: Json | None = None,
    docker: bool = False,
    diff_ids: Sequence[str] | None = None,
    layer_changes: Json | None = None,
    manifest_changes: Json | None = None,
) -> Document:
    """An image whose layers are `archives`, from the lowest on; what tests need wrong is given as changes."""
    kinds = [compression] * len(archives) if isinstance(compression, str) else list(compression)
    layers = [compress(data, kind) for kind, data in zip(kinds, archives, strict=True)]
    ids = [digest_of(data) for data in archives] if diff_ids is None else list(diff_ids)
    platform = {"os": "linux", "architecture": architecture} | ({"variant": variant} if variant else {})
    settings = {**platform, "config": config or {}, "rootfs": {"type": "layers", "diff_ids": ids}}
    configuration = json.dumps(settings).encode()
    types = _DOCKER_LAYER if docker else _OCI_LAYER
    manifest: Json = {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST if docker else OCI_MANIFEST,
        "config": {
            "mediaType": DOCKER_CONFIG if docker else OCI_CONFIG,
            "digest": digest_of(configuration),
            "size": len(configuration),
        },
        "layers": [
            {"mediaType": types[kind], "digest": digest_of(data), "size": len(data), **(layer_changes or {})}
            for kind, data in zip(kinds, layers, strict=True)
        ],
        **(manifest_changes or {}),
    }
    return Document(
        data=json.dumps(manifest).encode(),
        media_type=manifest["mediaType"],
        blobs={digest_of(data): data for data in (configuration, *layers)},
        platform=platform,
        layers=tuple(digest_of(data) for data in layers),
    )


def index(children: Sequence[Document], *, docker: bool = False) -> Document:
    """An index of images, or of indexes."""
    media_type = DOCKER_INDEX if docker else OCI_INDEX
    content = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "manifests": [child.descriptor for child in children],
    }
    return Document(json.dumps(content).encode(), media_type, {}, tuple(children))


def attestation(of: Document) -> Document:
    """What BuildKit puts beside an image: about it, and no image itself."""
    statement = json.dumps({"subject": of.digest}).encode()
    digest = digest_of(statement)
    layer = {"mediaType": "application/vnd.in-toto+json", "digest": digest, "size": len(statement)}
    made = image([], manifest_changes={"layers": [layer]})
    return replace(
        made,
        blobs={**made.blobs, digest: statement},
        platform={"os": "unknown", "architecture": "unknown"},
        annotations={"vnd.docker.reference.type": "attestation-manifest"},
    )


def oci_layout(document: Document, *, name: str | None = None) -> dict[str, bytes]:
    """The files of an OCI layout with this image in it."""
    descriptor = document.descriptor
    if name is not None:
        descriptor["annotations"] = {"org.opencontainers.image.ref.name": name}
    listing = {"schemaVersion": 2, "manifests": [descriptor]}
    return {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(listing).encode(),
        **{f"blobs/{digest.replace(':', '/')}": data for digest, data in document.all_blobs().items()},
    }


def docker_save(
    document: Document, archives: Sequence[bytes], *, tag: str = "test:latest"
) -> dict[str, bytes]:
    """The files that `docker save` writes, before version 25."""
    manifest = json.loads(document.data)
    config = manifest["config"]["digest"].partition(":")[2]
    layers = {f"{number:064x}/layer.tar": data for number, data in enumerate(archives)}
    listing = [{"Config": f"{config}.json", "RepoTags": [tag], "Layers": list(layers)}]
    return {
        **layers,
        f"{config}.json": document.blobs[manifest["config"]["digest"]],
        "manifest.json": json.dumps(listing).encode(),
    }
