"""Which requests are for a sandbox, and for which port of it. Pure functions on what came over the wire.

Three forms, in order of precedence:

1. the host `<port>-<id>.<domain>`, if a domain is configured;
2. the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, which E2B SDKs send on data-plane calls only;
3. the headers `x-agentenv-sandbox-id` and `x-agentenv-target-port`, with the path as it is or below
   `/proxy`, which is then taken off.

Everything else is for the API. An E2B request keeps a path that begins with `/proxy`: that is the
application's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from aenv.errors import InvalidRequest
from aenv.ids import is_sandbox_id

Headers = Iterable[tuple[bytes, bytes]]

E2B_HEADERS = (b"e2b-sandbox-id", b"e2b-sandbox-port")
AGENTENV_HEADERS = (b"x-agentenv-sandbox-id", b"x-agentenv-target-port")
_ROUTING_HEADERS = frozenset(E2B_HEADERS + AGENTENV_HEADERS)

PROXY_PREFIX = b"/proxy"

_PORT = re.compile(r"[0-9]{1,5}")
_PORT_LABEL = re.compile(r"[0-9]+-")
"""Begin of a host label that names a sandbox, or means to."""


@dataclass(frozen=True, slots=True)
class Route:
    """A sandbox's port, and the path there, undecoded."""

    sandbox_id: str
    port: int
    path: bytes


class BadRoute(InvalidRequest):
    """The request is meant for a sandbox, but doesn't say rightly which."""


def find_route(headers: Headers, raw_path: bytes, domain: str | None) -> Route | None:
    """The sandbox port that a request is for, or None if it is for the API. Raises `BadRoute`."""
    host, given = _relevant(headers)
    label = None if domain is None else _sandbox_label(host, domain)
    if label is not None:
        port, _, sandbox_id = label.partition("-")
        return _route(sandbox_id, port, raw_path)
    if not given.keys().isdisjoint(E2B_HEADERS):
        return _route(_header(given, E2B_HEADERS[0]), _header(given, E2B_HEADERS[1]), raw_path)
    if given or _is_below_prefix(raw_path):
        sandbox_id, port = (_header(given, name) for name in AGENTENV_HEADERS)
        return _route(sandbox_id, port, _without_prefix(raw_path))
    return None


def _relevant(headers: Headers) -> tuple[bytes, dict[bytes, bytes]]:
    """The host and the routing headers. Raises `BadRoute` if one contradicts itself."""
    host = b""
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"host":
            if host not in {b"", value}:
                raise BadRoute("the header host is given twice, with different values")
            host = value
        elif name in _ROUTING_HEADERS and given.setdefault(name, value) != value:
            raise BadRoute(f"the header {name.decode()} is given twice, with different values")
    return host, given


def _sandbox_label(host: bytes, domain: str) -> str | None:
    """The label `<port>-<id>` of `<port>-<id>.<domain>[:port]`, lower-case; None for any other host."""
    name = host.decode("latin-1").lower().rsplit(":", 1)[0].removesuffix(".")
    suffix = "." + domain.lower().rsplit(":", 1)[0]
    label = name.removesuffix(suffix)
    if label == name or _PORT_LABEL.match(label) is None:
        return None
    return label


def _header(given: dict[bytes, bytes], name: bytes) -> str:
    value = given.get(name)
    if value is None:
        raise BadRoute(f"the header {name.decode()} is missing")
    return value.decode("latin-1").strip()


def _route(sandbox_id: str, port: str, path: bytes) -> Route:
    if not is_sandbox_id(sandbox_id):
        raise BadRoute(f"{sandbox_id!r} can't be a sandbox id")
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65535:
        raise BadRoute(f"{port!r} isn't a port: must be between 1 and 65535")
    return Route(sandbox_id, int(port), path)


def _is_below_prefix(path: bytes) -> bool:
    return path == PROXY_PREFIX or path.startswith(PROXY_PREFIX + b"/")


def _without_prefix(path: bytes) -> bytes:
    return path.removeprefix(PROXY_PREFIX) or b"/" if _is_below_prefix(path) else path
