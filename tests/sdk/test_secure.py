"""Access tokens: who has none gets nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2b import AuthenticationException, NotFoundException, SandboxException

from tests.sdk.client import Client
from tests.sdk.web import Answer, request
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]

ROUTES = [
    ("GET", "/envs"),
    ("GET", "/metrics"),
    ("POST", "/process.Process/List"),
    ("POST", "/process.Process/Start"),
    ("POST", "/filesystem.Filesystem/ListDir"),
    ("POST", "/files/compose"),
    ("DELETE", "/files"),
]


@pytest.fixture(scope="module")
def token(sandbox: Any) -> str:
    """The sandbox's access token."""
    return str(sandbox.connection_config.sandbox_headers["X-Access-Token"])


def _ask(server: Server, sandbox: Any, method: str, path: str, token: str | None) -> Answer:
    headers = {"Content-Type": "application/json", **({} if token is None else {"X-Access-Token": token})}
    return request(
        server, sandbox, path, method=method, body=b"{}" if method == "POST" else None, headers=headers
    )


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_wants_the_token(
    server: Server, sandbox: Any, token: str, method: str, path: str
) -> None:
    for wrong in (None, "", "wrong", token[:-1], token + "0"):
        answer = _ask(server, sandbox, method, path, wrong)
        assert answer.status == 401
        assert json.loads(answer.body)["code"] == 401
    assert _ask(server, sandbox, method, path, token).status != 401
    assert _ask(server, sandbox, "GET", "/health", None).status == 204


@pytest.mark.parametrize("path", ["/init", "/freeze", "/unfreeze", "/warm"])
def test_internal_routes_cant_be_reached(server: Server, sandbox: Any, token: str, path: str) -> None:
    for given in (None, token):
        assert _ask(server, sandbox, "POST", path, given).status == 404
    assert sandbox.is_running()


def test_tokens_of_sandboxes_differ_and_stay(
    client: Client, server: Server, sandbox: Any, token: str
) -> None:
    other = client.create()
    try:
        assert _ask(server, other, "GET", "/envs", token).status == 401
        assert client.connect(sandbox.sandbox_id).commands.run("echo fine").stdout == "fine\n"
    finally:
        other.kill()


def test_a_wrong_key_is_refused(client: Client, server: Server, sandbox: Any) -> None:
    wrong = {**client.options, "api_key": "e2b_" + "0" * 40}
    with pytest.raises(AuthenticationException):
        client.sandbox_class.create("base", **wrong)
    with pytest.raises(AuthenticationException):
        client.sandbox_class.connect(sandbox.sandbox_id, **wrong)
    with pytest.raises(AuthenticationException):
        client.sandbox_class.kill(sandbox.sandbox_id, **wrong)


def test_what_does_not_exist(client: Client) -> None:
    with pytest.raises(NotFoundException):
        client.connect("i" + "0" * 20)
    with pytest.raises((NotFoundException, SandboxException), match="no-such-template"):
        client.create("no-such-template")
    assert not client.sandbox_class.kill("i" + "0" * 20, **client.options)
