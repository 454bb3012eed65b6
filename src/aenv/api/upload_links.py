"""Links to which archives are put: the SDKs send no key there, so the link itself is signed."""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import urlencode

from starlette.requests import Request

from aenv.errors import Unauthorized

UPLOADS = "/uploads"
"""The route that the links lead to."""

VALID_SECONDS = 3600
"""How long an upload may begin after its link was given out."""


class UploadLinks:
    """Makes and checks links, with a secret that follows from the API key."""

    def __init__(self, key: str) -> None:
        self._secret = hashlib.sha256(b"upload links\0" + key.encode()).digest()

    def make(self, request: Request, files_hash: str) -> str:
        """The link for an archive, on the address by which `request` reached this server."""
        expires = int(time.time()) + VALID_SECONDS
        query = {"hash": files_hash, "expires": expires, "signature": self._sign(files_hash, expires)}
        return f"{request.url.scheme}://{request.url.netloc}{UPLOADS}?{urlencode(query)}"

    def check(self, files_hash: str, expires: int, signature: str) -> None:
        """Raise Unauthorized unless a link is ours, and not too old."""
        expected = self._sign(files_hash, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode()) or expires < time.time():
            raise Unauthorized("this upload link is not valid, or not any more: ask for another")

    def _sign(self, files_hash: str, expires: int) -> str:
        return hmac.new(self._secret, f"{expires} {files_hash}".encode(), hashlib.sha256).hexdigest()
