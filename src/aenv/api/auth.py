"""The deployment's API key: where it is kept, and who may pass."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from aenv.api.errors import error_response
from aenv.errors import HostNotReady, Unauthorized
from aenv.ids import new_api_key
from aenv.settings import Settings

ENVIRONMENT = "AENV_API_KEY"
"""Overrides the key file."""

_USABLE_KEY = re.compile(r"[A-Za-z0-9._~-]{32,256}")
"""Long enough not to be guessed, and safe in a header. Keys made here are `e2b_` and 40 hex digits."""

OPEN_ROUTES = frozenset(
    {("GET", "/health"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("PUT", "/uploads")}
)
"""What anybody may call; an upload has a signature instead."""


class ApiKeys:
    """Knows the one API key of this deployment."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._bytes = key.encode()

    @classmethod
    def load(cls, settings: Settings) -> ApiKeys:
        """The key from `AENV_API_KEY`, else from the key file, which is made on first use.

        Raises `HostNotReady` if the key can't be used or the file can't be made. Blocks on the disk for a
        moment: call it while starting.
        """
        if given := cls.from_environment():
            return cls(_checked(given, f"the environment variable {ENVIRONMENT}"))
        path = settings.api_key_file
        try:
            return cls(_checked(_read_or_make(path), f"the file {path}"))
        except OSError as error:
            raise HostNotReady(f"the API key file {path} can't be used: {error.strerror}") from error

    @staticmethod
    def from_environment() -> str | None:
        """The key that the environment gives, unchecked; an empty one counts as none."""
        return os.environ.get(ENVIRONMENT) or None

    def is_key(self, text: bytes) -> bool:
        """Whether `text` is the key; takes the same time whatever `text` is."""
        return hmac.compare_digest(text, self._bytes)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise `Unauthorized` unless `headers` carry the key exactly once.

        `X-API-KEY` is what SDKs send; `Authorization: Bearer` is taken when that is absent.
        """
        keys: list[bytes] = []
        bearers: list[bytes] = []
        for name, value in headers:
            if name == b"x-api-key":
                keys.append(value)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                bearers.append(value[7:].strip())
        given = keys or bearers
        if not given:
            raise Unauthorized("the API key is missing: send it in the header X-API-KEY")
        if len(given) > 1 or not self.is_key(given[0]):
            raise Unauthorized("the API key is wrong")


def _checked(key: str, source: str) -> str:
    if not _USABLE_KEY.fullmatch(key):
        raise HostNotReady(f"the API key in {source} must be 32 to 256 letters, digits or any of '._~-'")
    return key


def _read_or_make(path: Path) -> str:
    """The key in `path`. If two servers start at once, both end up with the same key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    if not path.exists():
        # mkstemp makes files with mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=".api-key-", dir=path.parent)
        draft = Path(name)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(new_api_key() + "\n")
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces a key that another server has just made.
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            draft.unlink()
    path.chmod(0o600)
    return path.read_text().strip()


class RequireKey:
    """Lets a request pass to the application only with the key, before any of its body is read."""

    def __init__(self, app: ASGIApp, auth: ApiKeys) -> None:
        self.app = app
        self.auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; other scopes have nothing to protect and pass."""
        if scope["type"] == "http" and (scope["method"], scope["path"]) not in OPEN_ROUTES:
            try:
                self.auth.check(scope["headers"])
            except Unauthorized as error:
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)
