"""What is known of a container image: its config, its layers as files on this host, who may pull it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

Compression = Literal["none", "gzip", "zstd"]

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ImageConfig:
    """How an image wants to be run: `config` of the OCI image configuration."""

    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    user: str = ""
    """`user`, `uid`, `user:group` or `uid:gid`; empty means root."""
    working_dir: str = ""
    """Empty means `/`."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    """Each as `80/tcp`."""
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    stop_signal: str = ""


@dataclass(frozen=True)
class LayerBlob:
    """One layer as a complete, verified file."""

    digest: str
    """`sha256:…` of the file."""
    diff_id: str
    """`sha256:…` of the tar archive in it."""
    size: int
    """Bytes of the file."""
    compression: Compression
    path: Path


@dataclass(frozen=True)
class FetchedImage:
    """An image whose layers are all on this host."""

    reference: str
    """Where it came from, in full and with its digest."""
    digest: str
    """Of its manifest."""
    platform: str
    """As `linux/amd64`."""
    config: ImageConfig
    layers: tuple[LayerBlob, ...]
    """In the order in which they are applied."""


class FetchProgress(Protocol):
    """Hears how far the layers of an image are. Called on the event loop, often; it must be quick."""

    def layer(self, digest: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes (if known) of a layer are here; equal at its end, which may be at once."""
        ...


@dataclass(frozen=True)
class UserPassword:
    """A registry's user, who may be a token's name."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Aws:
    """Keys of an AWS account for its registry (ECR)."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str


@dataclass(frozen=True)
class Gcp:
    """A service account of Google Cloud, as the JSON of its key."""

    service_account_json: str = field(repr=False)


Credentials: TypeAlias = UserPassword | Aws | Gcp
"""Who pulls. None stands for whom the host's docker configuration names, else nobody."""
