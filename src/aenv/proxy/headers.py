"""Which headers cross the proxy (RFC 9110 section 7.6.1), and which it adds."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.types import Scope

from aenv.guest import ENVD_PORT
from aenv.proxy.tokens import TRAFFIC_TOKEN_HEADER
from aenv.sandboxes.models import PORT_MARK, Endpoint

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_ADDED = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})
_NOT_SENT = HOP_BY_HOP | {b"expect", TRAFFIC_TOKEN_HEADER}
"""`Expect: 100-continue` is answered by our own server."""

_BEARER = b"bearer "


def end_to_end(headers: Iterable[Header], dropped: frozenset[bytes]) -> list[Header]:
    """The headers without `dropped` and without those that the `Connection` header names."""
    headers = list(headers)
    for name, value in headers:
        if name.lower() == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def masked_host(endpoint: Endpoint, port: int) -> bytes | None:
    """The `Host` that the sandbox wants to see on that port instead of the client's, if any."""
    if endpoint.mask_host is None or port == ENVD_PORT:
        return None
    return endpoint.mask_host.replace(PORT_MARK, str(port)).encode()


def request_headers(scope: Scope, api_key: bytes, mask: bytes | None = None) -> list[Header]:
    """The headers to send on: `Host` stays the client's unless there is a `mask`; our secrets stay here."""
    sent: list[Header] = []
    forwarded: dict[bytes, bytes] = {}
    host = b""
    for name, value in end_to_end(scope["headers"], _NOT_SENT):
        if name in _ADDED:
            forwarded[name] = value if name not in forwarded else forwarded[name] + b", " + value
            continue
        if name == b"host":
            host = value
            if mask is not None:
                continue
        elif _is_our_key(name, value, api_key):
            continue
        sent.append((name, value))
    if mask is not None:
        sent.append((b"host", mask))
    return sent + _forwarded(scope, host, forwarded)


def _is_our_key(name: bytes, value: bytes, api_key: bytes) -> bool:
    """Whether the header holds the server's own key, in any of the spellings that the API takes."""
    if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
        value = value[len(_BEARER) :]
    elif name != b"x-api-key":
        return False
    return hmac.compare_digest(value.strip(), api_key)


def _forwarded(scope: Scope, host: bytes, given: dict[bytes, bytes]) -> list[Header]:
    """`X-Forwarded-*`. Host and scheme that a proxy in front of us has set are kept: it saw the client."""
    client = scope.get("client")
    address = client[0].encode() if client else b"unknown"
    chain = given.get(b"x-forwarded-for")
    scheme = {"ws": b"http", "wss": b"https"}.get(scope["scheme"], scope["scheme"].encode())
    return [
        (b"x-forwarded-for", address if chain is None else chain + b", " + address),
        (b"x-forwarded-host", given.get(b"x-forwarded-host", host)),
        (b"x-forwarded-proto", given.get(b"x-forwarded-proto", scheme)),
    ]


def response_headers(status: int, headers: Iterable[Header]) -> list[Header]:
    """The headers of an answer to hand to the client."""
    dropped = HOP_BY_HOP
    if status in {204, 304}:
        dropped |= {b"content-length"}  # our server would wait for a body of that length
    return end_to_end(headers, dropped)
