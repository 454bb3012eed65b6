"""What may reach a sandbox's ports from outside."""

from __future__ import annotations

import hmac
import posixpath
from collections.abc import Iterable
from urllib.parse import unquote

from aenv.guest import ENVD_PORT

TRAFFIC_TOKEN_HEADER = b"e2b-traffic-access-token"

INTERNAL_ROUTES = frozenset(
    {
        "/init",
        "/freeze",
        "/unfreeze",
        "/collapse",
        "/fsfreeze",
        "/fsthaw",
        "/upgrade",
        "/warm",
        "/sync",
        "/logs",
        "/extract",
        "/grow",
    }
)
"""Routes of envd that belong to the server alone."""


def is_internal(port: int, raw_path: bytes) -> bool:
    """Whether the path, however it is spelled, may lead to a route that clients must not reach.

    HTTP servers decode and clean paths before they route, so `//init`, `/%69nit` and `/x/../init` count.
    """
    if port != ENVD_PORT:
        return False
    path = unquote(raw_path.decode("latin-1"))
    return posixpath.normpath("/" + path.lstrip("/")) in INTERNAL_ROUTES


def may_pass(expected: str | None, port: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the traffic token, where the sandbox has one, is given. envd's port has its own token."""
    if expected is None or port == ENVD_PORT:
        return True
    given = [value for name, value in headers if name == TRAFFIC_TOKEN_HEADER]
    return len(given) == 1 and hmac.compare_digest(given[0], expected.encode())
