"""Images on registries: the pulling half of the OCI distribution specification.

Source: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pull
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import BaseModel, ValidationError

from aenv.errors import ImageMissing, ImageUnusable
from aenv.images import manifests
from aenv.images.auth import Authorizer, Login
from aenv.images.blobs import BlobLease, BlobStore
from aenv.images.download import Blob, Content, Pieces, digest_of
from aenv.images.manifests import DOCUMENT_BYTES, Index, Manifest, Platform
from aenv.images.models import FetchProgress
from aenv.images.partial import WrongContent
from aenv.images.reference import DIGEST, Reference
from aenv.images.retries import retried
from aenv.images.sources import Description, Layer, OpenImage, opened
from aenv.images.transport import Response, Transport, pieces, read_body

_MANIFESTS: Final = {"Accept": ", ".join(manifests.ACCEPTED)}
_ERROR_BYTES: Final = 64 << 10
_SHOWN: Final = 200

FindLogin = Callable[[Reference], Awaitable[Login | None]]
"""Finds who pulls from a registry."""


class Repository:
    """One repository on one registry, for one user."""

    def __init__(self, transport: Transport, reference: Reference, login: Login | None) -> None:
        self._transport = transport
        self._reference = reference
        self._authorizer = Authorizer(transport, reference, login)

    async def digest(self, tag: str) -> str | None:
        """The digest of the manifest that a tag names now; None if the registry doesn't say it.

        Docker Hub counts how often a manifest is got, and doesn't count this. Raises ImageMissing if it is
        refused to who asks, RegistryUnavailable.
        """
        return await retried(lambda: self._digest(tag), self._transport.patience)

    async def _digest(self, tag: str) -> str | None:
        async with self._get(f"manifests/{tag}", _MANIFESTS, method="HEAD") as response:
            said = response.headers.get("Docker-Content-Digest", "")
            return said if response.status == 200 and DIGEST.fullmatch(said) else None

    async def manifest(self, wanted: str) -> tuple[bytes, str]:
        """The manifest or index of a tag or digest, and its media type.

        Raises ImageMissing, ImageUnusable (WrongContent if its digest differs) or RegistryUnavailable.
        """
        return await retried(lambda: self._manifest(wanted), self._transport.patience)

    async def _manifest(self, wanted: str) -> tuple[bytes, str]:
        async with self._get(f"manifests/{wanted}", _MANIFESTS) as response:
            if response.status != 200:
                raise await self._failure(response, wanted)
            body = await read_body(response, DOCUMENT_BYTES)
            said = response.headers.get("Docker-Content-Digest", "")
            media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        for digest in (wanted, said):
            algorithm, colon, _ = digest.partition(":")
            if colon and algorithm in {"sha256", "sha512"} and digest != digest_of(body, algorithm):
                raise WrongContent(f"the manifest of {self._reference} isn't what its digest says: {digest}")
        return body, media_type

    def content(self, blob: Blob) -> Content:
        """Opens `blob` at an offset."""
        return partial(self._open_blob, blob)

    @asynccontextmanager
    async def _open_blob(self, blob: Blob, offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with self._get(f"blobs/{blob.digest}", headers) as response:
            if response.status == 206:
                yield _range_start(response), pieces(response)
            elif response.status == 200:
                yield 0, pieces(response)
            else:
                raise await self._failure(response, f"{blob}")

    @asynccontextmanager
    async def _get(self, path: str, headers: dict[str, str], method: str = "GET") -> AsyncIterator[Response]:
        """An answer of the registry; who asks is proved if it wants that. Raises Interrupted as well."""
        base = await self._transport.base(self._reference.host)
        url = base / "v2" / self._reference.repository / path
        sent = self._authorizer.header
        for last in (False, True):
            async with self._transport.request(method, url, headers=headers, authorization=sent) as response:
                if response.status != 401 or response.url.origin() != base.origin():
                    yield response
                    return
                challenges = response.headers.getall("WWW-Authenticate", [])
            if last:
                raise self._authorizer.refusal()
            await self._authorizer.answer(challenges, sent)
            sent = self._authorizer.header

    async def _failure(self, response: Response, what: str) -> ImageUnusable:
        """The error for an answer that isn't what was asked for, with the registry's own words."""
        said = _message(await read_body(response, _ERROR_BYTES))
        told = f" ({said})" if said else ""
        asked = f"{what} of {self._reference.repository}"
        if response.status == 404:
            return ImageMissing(f"{self._reference.registry} has no {asked}{told}")
        if response.status in {401, 403}:
            return ImageMissing(f"{self._authorizer.refusal().message}{told}")
        return ImageUnusable(
            f"{response.url.host} answers with status {response.status} when asked for {asked}{told}"
        )


@dataclass(frozen=True)
class RegistrySource:
    """An image on the first of several registries that has it."""

    transport: Transport
    candidates: Sequence[Reference]
    find_login: FindLogin
    platform: Platform

    @asynccontextmanager
    async def open(self, blobs: BlobStore, progress: FetchProgress) -> AsyncIterator[OpenImage]:
        """See `Source`."""
        async with blobs.lease() as lease:
            description = await self._find(lease)
            async with opened(description, lease, progress) as image:
                yield image

    async def _find(self, lease: BlobLease) -> Description:
        missing: list[str] = []
        for reference in self.candidates:
            try:
                login = await self.find_login(reference)
                return await self._describe(Repository(self.transport, reference, login), reference, lease)
            except ImageMissing as error:
                missing.append(error.message)
        raise ImageMissing("; ".join(missing))

    async def _describe(self, repository: Repository, reference: Reference, lease: BlobLease) -> Description:
        what = str(reference)

        async def get(wanted: str) -> tuple[str, Index | Manifest]:
            return await self._document(repository, wanted, what, lease)

        digest, manifest = await manifests.find_manifest(get, reference.wanted, self.platform, what)
        config = manifest.config.blob
        data = await lease.read(config, repository.content(config), DOCUMENT_BYTES)
        configuration = manifests.parse_configuration(data, what)
        manifests.check_platform(configuration, self.platform, what)
        if len(configuration.diff_ids) != len(manifest.layers):
            raise ImageUnusable(
                f"{what} is damaged: {len(manifest.layers)} layers, {len(configuration.diff_ids)} diff_ids"
            )
        pairs = zip(manifest.layers, configuration.diff_ids, strict=True)
        return Description(
            reference=str(reference.pinned(digest)),
            digest=digest,
            platform=str(self.platform),
            config=configuration.image_config,
            layers=tuple(
                Layer(layer.blob, diff_id, repository.content(layer.blob)) for layer, diff_id in pairs
            ),
        )

    async def _document(
        self, repository: Repository, wanted: str, what: str, lease: BlobLease
    ) -> tuple[str, Index | Manifest]:
        """What a tag or digest names. What is here is not got again."""
        digest = wanted if ":" in wanted else await repository.digest(wanted)
        stored = await lease.document(digest) if digest else None
        if digest and stored is not None:
            return digest, manifests.parse(stored, "", what)
        data, media_type = await repository.manifest(digest or wanted)
        document = manifests.parse(data, media_type, what)
        digest = digest or digest_of(data)
        await lease.keep(Blob(digest, len(data)), data)
        return digest, document


def _range_start(response: Response) -> int:
    """Where a part begins: `Content-Range: bytes 100-199/200` (RFC 9110 section 14.4)."""
    given = response.headers.get("Content-Range", "")
    start = given.removeprefix("bytes ").partition("-")[0].strip()
    if not start.isdecimal():
        raise ImageUnusable(f"{response.url.host} sends a part of a blob and doesn't say which")
    return int(start)


class _Problem(BaseModel):
    code: str = ""
    message: str = ""


class _Problems(BaseModel):
    errors: list[_Problem]


def _message(body: bytes) -> str:
    """What a registry says of its failure, without what could upset a terminal or a log."""
    try:
        problems = _Problems.model_validate_json(body).errors
    except ValidationError:
        return ""
    text = "; ".join(problem.message or problem.code for problem in problems)
    return "".join(each for each in text if each.isprintable())[:_SHOWN]
