"""Requests to a sandbox without an SDK: what a browser or curl would do with a signed URL."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.server import Server


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(
    server: Server,
    sandbox: Any,
    target: str,
    *,
    method: str = "GET",
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """A request to `target`, a path or a URL, on port 49983 of a sandbox.

    A body that isn't bytes is sent in chunks.
    """
    url, parts = urlsplit(server.url), urlsplit(target)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    try:
        connection.request(
            method,
            f"{parts.path}?{parts.query}",
            body,
            {**routed, **(headers or {})},
            encode_chunked=not isinstance(body, bytes | None),
        )
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())
    finally:
        connection.close()
