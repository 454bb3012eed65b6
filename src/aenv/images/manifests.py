"""What registries and archives say about an image: indexes, manifests, configurations.

Sources: the OCI image specification (https://github.com/opencontainers/image-spec) and Docker's Image
Manifest Version 2, Schema 2, which differ in their media types only.
"""

from __future__ import annotations

import platform as host
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from aenv.errors import ImageUnusable
from aenv.images.download import Blob
from aenv.images.models import ImageConfig
from aenv.images.reference import DIGEST

DOCUMENT_BYTES: Final = 4 << 20
"""The largest manifest, as registries limit it; configurations are held to the same."""
MOST_LAYERS: Final = 1000
_DEEPEST_INDEX: Final = 4

ACCEPTED: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types to ask a registry for."""
_FIRST_SCHEMA: Final = "application/vnd.docker.distribution.manifest.v1+"
_CONFIGS: Final = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
    "",
)
_LAYERS: Final = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
_ELSEWHERE: Final = (".foreign.", ".nondistributable.")
_SHOWN: Final = 200
_ATTESTATION: Final = "vnd.docker.reference.type"  # an annotation of BuildKit's

_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_VARIANTS: Final = {"amd64": ("", "v1", "v2"), "arm64": ("v8", "")}
"""The variants of an architecture that its machines run, the best first."""

Text: TypeAlias = Annotated[str, BeforeValidator(lambda given: "" if given is None else given)]
Texts: TypeAlias = Annotated[
    tuple[str, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given or ())
]
Names: TypeAlias = Annotated[
    tuple[str, ...], BeforeValidator(lambda given: tuple(given) if isinstance(given, dict) else given or ())
]
Labels: TypeAlias = Annotated[dict[str, Text], BeforeValidator(lambda given: given or {})]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Platform(_Document):
    os: Text = ""
    architecture: Text = ""
    variant: Text = ""


class Descriptor(_Document):
    """What a document says of another blob."""

    media_type: Text = Field("", alias="mediaType")
    digest: str = Field(pattern=rf"^(?:{DIGEST.pattern})$")
    size: int = Field(ge=0, lt=1 << 50)
    urls: Texts = ()
    annotations: Labels = Field(default_factory=dict)
    platform: _Platform | None = None

    @property
    def blob(self) -> Blob:
        """What is to be stored."""
        return Blob(self.digest, self.size)

    @property
    def is_attestation(self) -> bool:
        """Is it about an image, rather than one?"""
        unknown = self.platform is not None and self.platform.os == "unknown"
        return unknown or _ATTESTATION in self.annotations


class Index(_Document):
    """The manifests of an image for several platforms."""

    manifests: tuple[Descriptor, ...] = Field(max_length=MOST_LAYERS)


class Manifest(_Document):
    """The parts of an image for one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...] = Field(max_length=MOST_LAYERS)


class _Run(_Document):
    """`config` of a configuration; null stands for what isn't set."""

    env: Texts = Field((), alias="Env")
    user: Text = Field("", alias="User")
    working_dir: Text = Field("", alias="WorkingDir")
    entrypoint: Texts = Field((), alias="Entrypoint")
    cmd: Texts = Field((), alias="Cmd")
    exposed_ports: Names = Field((), alias="ExposedPorts")
    volumes: Names = Field((), alias="Volumes")
    labels: Labels = Field(default_factory=dict, alias="Labels")
    stop_signal: Text = Field("", alias="StopSignal")


class _RootFs(_Document):
    diff_ids: Texts = ()


class Configuration(_Platform):
    """How an image is run, and what its layers are when they are unpacked."""

    config: _Run | None = None
    rootfs: _RootFs | None = None

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of the unpacked layers; empty if it has none."""
        return self.rootfs.diff_ids if self.rootfs else ()

    @property
    def image_config(self) -> ImageConfig:
        """The part that containers are run by."""
        run = self.config or _Run()
        pairs = (each.partition("=") for each in run.env)
        return ImageConfig(
            env={name: value for name, equals, value in pairs if name and equals},
            user=run.user,
            working_dir=run.working_dir,
            entrypoint=run.entrypoint,
            cmd=run.cmd,
            exposed_ports=run.exposed_ports,
            volumes=run.volumes,
            labels=run.labels,
            stop_signal=run.stop_signal,
        )


@dataclass(frozen=True)
class Platform:
    """What a machine runs."""

    os: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"

    def rank(self, found: _Platform | None) -> int | None:
        """How well something for `found` fits, 0 the best; None if it doesn't. No platform fits any, last."""
        variants = _VARIANTS.get(self.architecture, ("",))
        if found is None or not found.architecture:
            return len(variants)
        if (found.os or "linux", found.architecture) != (self.os, self.architecture):
            return None
        return variants.index(found.variant) if found.variant in variants else None


def host_platform() -> Platform:
    """What guests on this machine run."""
    machine = host.machine()
    return Platform("linux", _MACHINES.get(machine, machine))


D = TypeVar("D", bound=_Document)


def parse(data: bytes, media_type: str, what: str) -> Index | Manifest:
    """The index or manifest in `data`; `what` names it in errors.

    Raises ImageUnusable if it is neither, or both: two readers might see two images then.
    """
    seen = _validated(_Kind, data, what)
    if (seen.media_type or media_type).startswith(_FIRST_SCHEMA) or seen.schema_version == 1:
        raise ImageUnusable(
            f"{what} has a manifest of schema 1, which Docker has given up: push it again with a newer tool"
        )
    if (seen.manifests is not None) == (seen.layers is not None):
        raise ImageUnusable(f"{what} is not a container image: it is {shown(seen.media_type or media_type)}")
    if seen.manifests is not None:
        return _validated(Index, data, what)
    manifest = _validated(Manifest, data, what)
    if manifest.config.media_type not in _CONFIGS:
        raise ImageUnusable(
            f"{what} is not a container image: its config is {shown(manifest.config.media_type)}"
        )
    for layer in manifest.layers:
        _check_layer(layer, what)
    return manifest


class _Kind(_Document):
    schema_version: int = Field(2, alias="schemaVersion")
    media_type: Text = Field("", alias="mediaType")
    manifests: object = None
    layers: object = None


def parse_configuration(data: bytes, what: str) -> Configuration:
    """The configuration in `data`. Raises ImageUnusable if it isn't one."""
    found = _validated(Configuration, data, what)
    for diff_id in found.diff_ids:
        if DIGEST.fullmatch(diff_id) is None:
            raise ImageUnusable(f"{what} has a configuration whose diff_ids are no digests")
    return found


def choose(index: Index, wanted: Platform, what: str) -> Descriptor:
    """The manifest of an index for this platform. Raises ImageUnusable that says which there are."""
    images = [each for each in index.manifests if not each.is_attestation]
    ranked = [(rank, each) for each in images if (rank := wanted.rank(each.platform)) is not None]
    if not ranked:
        names = ", ".join(sorted({_platform_name(each.platform) for each in images})) or "nothing"
        raise ImageUnusable(f"{what} is for {names}; this machine runs {wanted}")
    return min(ranked, key=lambda pair: pair[0])[1]


async def find_manifest(
    get: Callable[[str], Awaitable[tuple[str, Index | Manifest]]], wanted: str, platform: Platform, what: str
) -> tuple[str, Manifest]:
    """The manifest for this platform and its digest, found through indexes if need be.

    `get` has the digest and the content of what a tag or a digest names. Raises ImageUnusable, and as `get`.
    """
    for _ in range(_DEEPEST_INDEX + 1):
        digest, document = await get(wanted)
        if isinstance(document, Manifest):
            return digest, document
        wanted = choose(document, platform, what).digest
    raise ImageUnusable(f"{what} has indexes within indexes, more than {_DEEPEST_INDEX} deep")


def check_platform(configuration: Configuration, wanted: Platform, what: str) -> None:
    """Raise ImageUnusable if the image is for other machines."""
    if wanted.rank(configuration) is None:
        raise ImageUnusable(f"{what} is for {_platform_name(configuration)}; this machine runs {wanted}")


def _check_layer(layer: Descriptor, what: str) -> None:
    kind = layer.media_type
    if any(mark in kind for mark in _ELSEWHERE) or layer.urls:
        raise ImageUnusable(f"{what} has a foreign layer ({layer.blob}), to be had elsewhere: not supported")
    if kind and not kind.startswith(_LAYERS):
        raise ImageUnusable(f"{what} is not a container image: one of its layers is {shown(kind)}")
    if kind.endswith("+encrypted"):
        raise ImageUnusable(f"{what} has an encrypted layer ({layer.blob}): not supported")


def _validated(model: type[D], data: bytes, what: str) -> D:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ImageUnusable(f"{what} can't be read: {where + ': ' if where else ''}{first['msg']}") from error


def _platform_name(found: _Platform | None) -> str:
    parts = (found.os or "linux", found.architecture, found.variant) if found else ("an unknown platform",)
    return shown("/".join(part for part in parts if part))


def shown(text: str) -> str:
    """A stranger's text for a message."""
    return "".join(each for each in text[:_SHOWN] if each.isprintable()) or "of an unknown kind"
