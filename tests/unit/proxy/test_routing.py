"""Which requests go to which sandbox; pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.guest import ENVD_PORT
from aenv.proxy.routing import BadRoute, Route, find_route
from aenv.proxy.tokens import INTERNAL_ROUTES, is_internal, may_pass
from tests.unit.proxy.support import ID, OTHER

E2B = {"e2b-sandbox-id": ID, "e2b-sandbox-port": "49983"}
OURS = {"x-agentenv-sandbox-id": ID, "x-agentenv-target-port": "3000"}
DOMAIN = "sb.test:18443"


def route(headers: dict[str, str], path: str = "/p?", domain: str | None = None) -> Route | None:
    """`find_route` for text."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return find_route(raw, path.encode(), domain)


@pytest.mark.parametrize(
    ("headers", "path", "domain", "expected"),
    [
        ({}, "/sandboxes", None, None),
        ({"host": "localhost"}, "/", DOMAIN, None),
        (E2B, "/health", None, (ID, 49983, "/health")),
        (E2B, "/proxy/3000/", None, (ID, 49983, "/proxy/3000/")),
        (OURS, "/a%2Fb", None, (ID, 3000, "/a%2Fb")),
        (OURS, "/proxy", None, (ID, 3000, "/")),
        (OURS, "/proxy/", None, (ID, 3000, "/")),
        (OURS, "/proxy/a/b", None, (ID, 3000, "/a/b")),
        (OURS, "/proxyx", None, (ID, 3000, "/proxyx")),
        (E2B | OURS, "/", None, (ID, 49983, "/")),
        (E2B | {"host": "sandbox.sb.test"}, "/", DOMAIN, (ID, 49983, "/")),
        (E2B | {"host": "127.0.0.1:8000"}, "/", DOMAIN, (ID, 49983, "/")),
        (E2B | {"host": "[::1]:8000"}, "/", DOMAIN, (ID, 49983, "/")),
        ({"host": f"80-{ID}.sb.test"}, "/", DOMAIN, (ID, 80, "/")),
        ({"host": f"80-{ID}.sb.test:18443"}, "/proxy/x", DOMAIN, (ID, 80, "/proxy/x")),
        ({"host": f"80-{ID.upper()}.SB.Test."}, "/", DOMAIN, (ID, 80, "/")),
        (E2B | {"host": f"80-{OTHER}.sb.test"}, "/", DOMAIN, (OTHER, 80, "/")),
        ({"host": f"80-{ID}.sb.test"}, "/", None, None),
        ({"host": f"80-{ID}.other.test"}, "/", DOMAIN, None),
        ({"host": f"80-{ID}.x.sb.test"}, "/", "x.sb.test", (ID, 80, "/")),
        ({"host": "api.sb.test"}, "/", DOMAIN, None),
        ({"host": "sb.test"}, "/", DOMAIN, None),
    ],
)
def test_routes(
    headers: dict[str, str], path: str, domain: str | None, expected: tuple[str, int, str] | None
) -> None:
    found = route(headers, path, domain)
    assert found == (None if expected is None else Route(expected[0], expected[1], expected[2].encode()))


@pytest.mark.parametrize(
    ("headers", "path", "domain", "word"),
    [
        ({"e2b-sandbox-id": ID}, "/", None, "e2b-sandbox-port is missing"),
        ({"e2b-sandbox-port": "80"}, "/", None, "e2b-sandbox-id is missing"),
        ({"x-agentenv-sandbox-id": ID}, "/", None, "x-agentenv-target-port is missing"),
        (E2B | {"e2b-sandbox-id": ""}, "/", None, "id"),
        (E2B | {"e2b-sandbox-id": "a-b"}, "/", None, "id"),
        (E2B | {"e2b-sandbox-id": "../x"}, "/", None, "id"),
        (E2B | {"e2b-sandbox-port": "0"}, "/", None, "port"),
        (E2B | {"e2b-sandbox-port": "65536"}, "/", None, "port"),
        (E2B | {"e2b-sandbox-port": "-1"}, "/", None, "port"),
        (E2B | {"e2b-sandbox-port": "80x"}, "/", None, "port"),
        (E2B | {"e2b-sandbox-port": "\u00b2"}, "/", None, "port"),
        ({}, "/proxy/x", None, "x-agentenv-sandbox-id"),
        ({"host": f"99999-{ID}.sb.test"}, "/", DOMAIN, "port"),
        ({"host": "80-.sb.test"}, "/", DOMAIN, "id"),
        ({"host": "80-a_b.sb.test"}, "/", DOMAIN, "id"),
        ({"host": f"80-{ID}.x.sb.test"}, "/", DOMAIN, "id"),
    ],
)
def test_routes_that_mean_a_sandbox_and_fail(
    headers: dict[str, str], path: str, domain: str | None, word: str
) -> None:
    with pytest.raises(BadRoute, match=word):
        route(headers, path, domain)


def test_contradicting_headers() -> None:
    raw = [(b"e2b-sandbox-id", b"ia"), (b"e2b-sandbox-id", b"ib"), (b"e2b-sandbox-port", b"1")]
    with pytest.raises(BadRoute, match="twice"):
        find_route(raw, b"/", None)


@given(
    st.dictionaries(
        st.sampled_from([b"host", *(name.encode() for name in E2B | OURS)]),
        st.one_of(st.binary(max_size=20), st.sampled_from([ID.encode(), b"80", f"80-{ID}.sb.test".encode()])),
    ),
    st.binary(max_size=10),
    st.sampled_from([None, DOMAIN]),
)
def test_anything_from_the_wire_is_a_route_or_a_clear_refusal(
    headers: dict[bytes, bytes], path: bytes, domain: str | None
) -> None:
    try:
        found = find_route(headers.items(), path, domain)
    except BadRoute:
        return
    assert found is None or (1 <= found.port <= 65535 and found.sandbox_id.isalnum())


@pytest.mark.parametrize("path", sorted(INTERNAL_ROUTES))
@pytest.mark.parametrize("form", ["{}", "/{}", "{}/", "/.{}", "/x/..{}", "//./{}//", "/%2e/{}", "/../{}"])
def test_internal_routes_in_every_spelling(path: str, form: str) -> None:
    assert is_internal(ENVD_PORT, form.format(path).encode())
    assert not is_internal(3000, form.format(path).encode())


def test_internal_routes_percent_encoded() -> None:
    assert is_internal(ENVD_PORT, b"/%69n%69t")
    assert is_internal(ENVD_PORT, b"%2Finit")
    assert not is_internal(ENVD_PORT, b"/initial")
    assert not is_internal(ENVD_PORT, b"/x/init")
    assert not is_internal(ENVD_PORT, b"/files")


@pytest.mark.parametrize(
    ("token", "port", "given", "passes"),
    [
        (None, 80, [], True),
        ("t", ENVD_PORT, [], True),
        ("t", 80, [], False),
        ("t", 80, [b"x"], False),
        ("t", 80, ["ü".encode()], False),
        ("t", 80, [b"t", b"t"], False),
        ("t", 80, [b"t"], True),
    ],
)
def test_traffic_token(token: str | None, port: int, given: list[bytes], passes: bool) -> None:
    headers = [(b"e2b-traffic-access-token", value) for value in given]
    assert may_pass(token, port, headers) is passes
