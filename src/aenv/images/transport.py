"""HTTP with registries: TLS or not, redirects, time-outs, and what may be tried again.

A header `Authorization` goes only to the host that it is meant for: registries redirect to stores of others.
"""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeAlias

import aiohttp
from yarl import URL

from aenv.errors import ImageUnusable, RegistryUnavailable, ShuttingDown
from aenv.images.reference import host_name, is_loopback
from aenv.images.retries import Interrupted, Patience, retried

Response: TypeAlias = aiohttp.ClientResponse

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECT_SECONDS: Final = 20.0
_READ_BYTES: Final = 1 << 20
"""What a connection reads ahead while the disk is busy."""


class Transport:
    """The connections to all registries. Used as a context manager."""

    def __init__(
        self,
        *,
        insecure: Collection[str] = (),
        patience: Patience | None = None,
        idle_seconds: float = 30.0,
    ) -> None:
        """`insecure` are hosts, each `host` or `host:port`, that may be without TLS, beside loopback ones.

        A connection that says nothing for `idle_seconds` is given up.
        """
        self._insecure = frozenset(each.lower() for each in insecure)
        self.patience = patience or Patience()
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=idle_seconds
        )
        self._session: aiohttp.ClientSession | None = None
        self._plain: dict[str, bool] = {}

    async def __aenter__(self) -> Transport:
        self._session = aiohttp.ClientSession(
            timeout=self._timeout,
            auto_decompress=False,  # digests are of what is sent
            read_bufsize=_READ_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "aenv", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def base(self, host: str) -> URL:
        """The URL of `host`: with TLS, unless it may do without and has none.

        Raises RegistryUnavailable if it can't be reached.
        """
        plain = self._plain.get(host)
        if plain is None:
            plain = self._may_be_plain(host) and await retried(lambda: self._is_plain(host), self.patience)
            self._plain[host] = plain
        return URL(f"{'http' if plain else 'https'}://{host}")

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        data: bytes | Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """One answer; redirects are followed, but for a POST. `authorization` doesn't go to other hosts.

        Raises Interrupted, also while the answer is read in the block, and ImageUnusable for a redirect that
        leads nowhere.
        """
        origin, host = url.origin(), _authority(url)
        for _ in range(_MOST_REDIRECTS + 1):
            self.check_target(url, host)
            sent = dict(headers or {})
            if authorization is not None and url.origin() == origin:
                sent["Authorization"] = authorization
            async with self._exchange(method, url, sent, data) as response:
                if response.status not in _REDIRECTS or method == "POST":
                    yield response
                    return
                url = _target(url, response)
        raise ImageUnusable(f"{host} redirects without end")

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: URL, headers: Mapping[str, str], data: bytes | Mapping[str, str] | None
    ) -> AsyncIterator[Response]:
        if self._session is None or self._session.closed:
            raise ShuttingDown
        try:
            async with self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False, proxy=_proxy(url)
            ) as response:
                if response.status in _PASSING:
                    raise Interrupted(
                        f"{url.host} answers with status {response.status}", _retry_after(response)
                    )
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise RegistryUnavailable(f"{url.host} shows a certificate that is not trusted here") from error
        except aiohttp.ClientConnectorDNSError as error:
            if error.os_error.errno != socket.EAI_NONAME:
                raise _interruption(url, error) from error
            raise RegistryUnavailable(f"there is no host {url.host}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _interruption(url, error) from error

    def _may_be_plain(self, host: str) -> bool:
        return is_loopback(host) or not self._insecure.isdisjoint({host.lower(), host_name(host)})

    async def _is_plain(self, host: str) -> bool:
        """Does `host` lack TLS? It is tried first, so that no secret goes over a plain connection in vain."""
        try:
            async with self._exchange("GET", URL(f"https://{host}/v2/"), {}, None):
                return False
        except Interrupted as error:
            if error.__cause__ is None:  # it has answered, though not well
                raise
            try:
                async with self._exchange("GET", URL(f"http://{host}/v2/"), {}, None):
                    return True
            except Interrupted:
                raise error from error.__cause__

    def check_target(self, url: URL, host: str) -> None:
        """Raise ImageUnusable unless `host` may send this server to `url`.

        Without TLS only hosts are asked that may be, and only because one of them says so: a registry
        elsewhere shall not make this server talk to the services beside it.
        """
        plain = url.scheme == "http" and self._may_be_plain(_authority(url)) and self._may_be_plain(host)
        if url.scheme != "https" and not plain:
            raise ImageUnusable(
                f"{host} sends on to {url.host or 'nowhere'} without TLS: that is done between hosts "
                "of AENV_INSECURE_REGISTRIES only"
            )


async def pieces(response: Response) -> AsyncIterator[bytes]:
    """The body as it comes. Raises Interrupted if it breaks off."""
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _interruption(response.url, error) from error


async def read_body(response: Response, limit: int) -> bytes:
    """The body, of at most `limit` bytes. Raises ImageUnusable if it is longer."""
    body = bytearray()
    async for piece in pieces(response):
        body += piece
        if len(body) > limit:
            raise ImageUnusable(f"{response.url.host} sends more than {limit} bytes where few are right")
    return bytes(body)


def _authority(url: URL) -> str:
    """`host` or `host:port` of a URL."""
    return url.raw_authority.rpartition("@")[2]


def _target(url: URL, response: Response) -> URL:
    try:
        return checked(url.join(URL(response.headers["Location"], encoded=True)))
    except (KeyError, ValueError) as error:
        raise ImageUnusable(f"{url.host} redirects to no valid address") from error


def checked(url: URL) -> URL:
    """`url` if it can be asked for. Raises ValueError: the class itself takes nearly everything."""
    origin = url.origin()
    (origin.host or "").encode("idna")
    if not str(url).isascii() or not 0 < (origin.port or 0) < 65536:
        raise ValueError("an address that can't be sent")
    return url


def _proxy(url: URL) -> URL | None:
    """The proxy that the environment names for this URL: `https_proxy` and the like. Never for loopback."""
    host = url.host or ""
    proxies = urllib.request.getproxies_environment()
    found = proxies.get(url.scheme)
    if not found or is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return URL(found if "://" in found else f"http://{found}")


def _retry_after(response: Response) -> float | None:
    """Seconds that the answer asks to wait: a number or a date (RFC 9110 section 10.2.3)."""
    given = response.headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    try:
        return max(0.0, (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _interruption(url: URL, error: Exception) -> Interrupted:
    """Without the error's own text, for that may have a URL in it that is a secret."""
    return Interrupted(f"{url.host} can't be reached or broke off ({_reason(error)})")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it says nothing"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is unknown"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return error.os_error.strerror
    return type(error).__name__
