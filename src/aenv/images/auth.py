"""Proving to a registry who asks: Basic, or a token that its token server gives for one repository.

Source: https://distribution.github.io/distribution/spec/auth/token/ and …/auth/oauth/.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, ValidationError
from yarl import URL

from aenv.errors import ImageMissing, ImageUnusable
from aenv.images.reference import Reference
from aenv.images.retries import retried
from aenv.images.transport import Transport, checked, read_body

_ANSWER_BYTES: Final = 1 << 20
_CLIENT: Final = "aenv"
_CHALLENGE: Final = re.compile(r"(?i)^\s*(basic|bearer)(?:\s+(.*))?$")
_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Login:
    """What proves who asks. Without a password it is a token."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    """To be exchanged for tokens at the token server."""
    registry_token: str = field(default="", repr=False)
    """To be sent as it is."""

    @property
    def basic(self) -> str | None:
        """The header for Basic authentication, if there is a user."""
        if not self.username:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class _Answer(BaseModel):
    token: str = ""
    access_token: str = ""


class Authorizer:
    """The header `Authorization` for pulls from one repository."""

    def __init__(self, transport: Transport, reference: Reference, login: Login | None) -> None:
        self._transport = transport
        self._reference = reference
        self._login = login
        self._lock = asyncio.Lock()
        self.header: str | None = None
        """What to send now; None until the registry has asked for something."""
        if login is not None and login.registry_token:
            self.header = f"Bearer {login.registry_token}"

    async def answer(self, challenges: Sequence[str], refused: str | None) -> None:
        """Get a new header, as the values of `WWW-Authenticate` want it; `refused` is the one that was sent.

        Raises ImageMissing if there is nothing left to try, RegistryUnavailable if the token server fails.
        """
        async with self._lock:
            if self.header != refused:
                return  # another request has got a new one meanwhile
            found = {scheme: parameters for scheme, parameters in map(_challenge, challenges) if scheme}
            new: str | None
            if "bearer" in found:
                new = await retried(lambda: self._token(found["bearer"]), self._transport.patience)
            else:
                new = self._login.basic if self._login and "basic" in found else None
                if new == refused:  # it has been sent already
                    new = None
            if new is None:
                raise self.refusal()
            self.header = new

    def refusal(self) -> ImageMissing:
        """The error for an image that the registry doesn't give to who asks."""
        registry, repository = self._reference.registry, self._reference.repository
        if self._login is None:
            return ImageMissing(
                f"{registry} has no image {repository}, or only for those who log in: give credentials"
            )
        return ImageMissing(f"{registry} refuses {repository} to the credentials that were given")

    async def _token(self, challenge: dict[str, str]) -> str:
        """A header with a token for pulls from the repository, and for nothing else."""
        realm = self._realm(challenge)
        scope = f"repository:{self._reference.repository}:pull"
        asked = {"service": challenge.get("service", ""), "scope": scope}
        asked = {name: value for name, value in asked.items() if value}
        login = self._login
        if login is not None and login.identity_token:
            form = {
                **asked,
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": _CLIENT,
            }
            request = self._transport.request("POST", realm, data=form)
        else:
            basic = login.basic if login else None
            account = {"account": login.username} if login and basic else {}
            request = self._transport.request(
                "GET", realm.update_query({**account, **asked}), authorization=basic
            )
        async with request as response:
            if response.status in {400, 401, 403, 404}:
                raise self.refusal()
            body = await read_body(response, _ANSWER_BYTES)
        try:
            answer = _Answer.model_validate_json(body)
        except ValidationError:
            answer = _Answer()
        token = answer.token or answer.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise ImageUnusable(
                f"{realm.host}, where {self._reference.registry} sends for tokens, gives none"
            )
        return f"Bearer {token}"

    def _realm(self, challenge: dict[str, str]) -> URL:
        try:
            realm = checked(URL(challenge["realm"]))
        except (KeyError, ValueError) as error:
            raise ImageUnusable(
                f"{self._reference.registry} doesn't say where tokens are to be had"
            ) from error
        self._transport.check_target(realm, self._reference.host)
        return realm.with_user(None)


def _challenge(value: str) -> tuple[str, dict[str, str]]:
    """Scheme, empty if it isn't known here, and parameters of a challenge (RFC 9110 section 11.6.1)."""
    found = _CHALLENGE.match(value)
    if found is None:
        return "", {}
    parameters = {
        name.lower(): re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
        for name, quoted, plain in _PARAMETER.findall(found[2] or "")
    }
    return found[1].lower(), parameters
