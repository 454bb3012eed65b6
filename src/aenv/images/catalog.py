"""Finds images by what users call them, and owns the connections to registries.

async with ImageCatalog(registries=("docker.io",)) as images:
    async with images.named("debian:12").open(blobs, NoProgress()) as image:
        fetched = await image.fetch()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aenv.errors import InvalidRequest
from aenv.images.auth import Login
from aenv.images.clouds import Clouds, ecr_login, google_login
from aenv.images.docker_config import default_path, find_login
from aenv.images.local import LocalSource
from aenv.images.manifests import Platform, host_platform
from aenv.images.models import Aws, Credentials, Gcp, UserPassword
from aenv.images.reference import DOCKER_HUB, Reference, parse
from aenv.images.registry import RegistrySource
from aenv.images.retries import Patience
from aenv.images.sources import Source
from aenv.images.transport import Transport


class ImageCatalog:
    """All images that this server can get. Used as a context manager."""

    def __init__(
        self,
        *,
        registries: Sequence[str] = (DOCKER_HUB,),
        insecure: Sequence[str] = (),
        docker_config: Path | None = None,
        platform: Platform | None = None,
        patience: Patience | None = None,
        idle_seconds: float = 30.0,
        clouds: Clouds | None = None,
    ) -> None:
        """`registries` are where names without a host are looked for, in this order.

        `insecure` are hosts that may be asked without TLS, beside this one. Who pulls is found in
        `docker_config` (docker's own file if unset) when a pull doesn't say. A server that says nothing for
        `idle_seconds` is given up.
        """
        self._registries = tuple(registries)
        self._docker_config = docker_config or default_path()
        self._platform = platform or host_platform()
        self._clouds = clouds or Clouds()
        self._transport = Transport(insecure=insecure, patience=patience, idle_seconds=idle_seconds)

    async def __aenter__(self) -> ImageCatalog:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    def named(self, text: str, credentials: Credentials | None = None) -> Source:
        """The image on a registry that `text` names. Nothing is asked for yet.

        Raises InvalidRequest if it can't be the name of an image, or if credentials are given and it may be
        an image of several registries: they would go to all of these.
        """
        candidates = parse(text, self._registries)
        if credentials is not None and len(candidates) > 1:
            raise InvalidRequest(
                f"say whose image {text!r} is, as in {candidates[0]}: credentials are for one registry"
            )

        async def login(reference: Reference) -> Login | None:
            return await self._login(reference, credentials)

        return RegistrySource(self._transport, candidates, login, self._platform)

    def local(self, path: Path, *, tag: str | None = None, is_root: bool = False) -> Source:
        """The image in a file or folder of this host, as `LocalSource` says. Not for paths of strangers."""
        return LocalSource(path, self._platform, tag, is_root)

    async def _login(self, reference: Reference, credentials: Credentials | None) -> Login | None:
        match credentials:
            case UserPassword(username, password):
                return Login(username, password)
            case Aws():
                return await ecr_login(self._transport, reference.host, credentials, self._clouds)
            case Gcp():
                return await google_login(self._transport, reference.host, credentials, self._clouds)
            case None:
                return await find_login(reference.registry, self._docker_config)
