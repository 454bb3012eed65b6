"""Everything that goes wrong has the contract's form."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from aenv.api.body import MAX_BODY
from aenv.api.errors import ErrorGuard, error_response, validation_message
from aenv.errors import Conflict, GuestUnresponsive, Overloaded, ResumeRefused, RuntimeFailure, ShuttingDown
from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("key", [None, "", "e2b_wrong", "e2b_" + "0" * 40])
async def test_keys_that_are_missing_or_wrong(server: Server, key: str | None) -> None:
    headers = {} if key is None else {"X-API-KEY": key}
    for method, path in (("GET", "/v2/sandboxes"), ("POST", "/sandboxes"), ("GET", "/nix")):
        async with server.session.request(method, server.url + path, headers=headers, data=b"{") as response:
            assert response.status == 401
            assert (await response.json())["code"] == 401


async def test_bearer_is_taken_and_two_keys_are_not(server: Server) -> None:
    for headers, status in (
        ([("Authorization", f"Bearer {server.key}")], 200),
        ([("X-API-KEY", server.key), ("X-API-KEY", server.key)], 401),
        ([("X-API-KEY", "wrong"), ("Authorization", f"Bearer {server.key}")], 401),
    ):
        async with server.session.get(server.url + "/v2/sandboxes", headers=headers) as response:
            assert response.status == status


async def test_health_is_open(server: Server) -> None:
    async with server.session.get(server.url + "/health") as response:
        assert (response.status, await response.read()) == (204, b"")
        assert not {"server", "date"} & {name.lower() for name in response.headers}


async def test_unknown_routes_and_methods(server: Server) -> None:
    assert is_error(await server.request("GET", "/nix%2Fx"), 404, "route not found: GET /nix%2Fx")
    assert is_error(await server.request("GET", "/sandboxes/"), 404, "route not found")
    assert is_error(await server.request("PATCH", "/sandboxes"), 405, "PATCH /sandboxes")
    assert is_error(await server.request("GET", "/docs"), 404)


@pytest.mark.parametrize("body", [b"{", b"nix", b"\xff", b'{"templateID": "base",}', b"[" * 100_000])
async def test_malformed_json(server: Server, body: bytes) -> None:
    assert is_error(await server.request("POST", "/v2/sandboxes", data=body), 400, "malformed JSON")


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"x"'])
async def test_bodies_that_are_no_objects(server: Server, body: bytes) -> None:
    assert is_error(await server.request("POST", "/v2/sandboxes", data=body), 400, "body")


async def test_body_without_content_type_is_json(server: Server) -> None:
    options: dict[str, Any] = {"skip_auto_headers": ["Content-Type"], "data": b'{"templateID":"nix"}'}
    assert is_error(await server.request("POST", "/v2/sandboxes", **options), 404, "nix")


async def test_large_bodies_are_refused_with_and_without_a_length(server: Server) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (MAX_BODY // 16)

    for body in (io.BytesIO(b" " * (MAX_BODY + 1)), chunks()):
        assert is_error(await server.request("POST", "/v2/sandboxes", data=body), 413, "larger")


async def test_chunked_json(server: Server) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"templateID":'
        await asyncio.sleep(0)
        yield b'"base"}'

    assert (await server.request("POST", "/v2/sandboxes", data=chunks())).status == 201


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Overloaded("full", retry_after=1.2), 503, {"should-retry": "true", "retry-after": "2"}),
        (Overloaded("full"), 503, {"should-retry": "true"}),
        (ShuttingDown(), 503, {"should-retry": "true", "retry-after": "5"}),
        (RuntimeFailure("gone"), 500, {"should-retry": "false"}),
        (Conflict("paused"), 409, {}),
    ],
)
async def test_retry_advice(error: Any, status: int, headers: dict[str, str]) -> None:
    response = error_response(error)
    assert response.status_code == status
    advice = {name: value for name, value in response.headers.items() if "retry" in name}
    assert advice == headers


async def test_error_code() -> None:
    response = error_response(ResumeRefused("no answer"))
    assert response.status_code == 409
    assert b'"error_code":"sandbox_snapshot_guest_agent_unresponsive"' in bytes(response.body)
    # The SDK would advise to reboot whatever has this code, a sandbox that couldn't be created as well.
    assert b"error_code" not in bytes(error_response(GuestUnresponsive("no answer")).body)


async def test_validation_message_is_bounded() -> None:
    failures = [{"type": "missing", "loc": ("body", f"f{n}"), "msg": "Field required"} for n in range(9)]
    assert validation_message(failures).endswith("f2: Field required; and 6 more")


async def test_unforeseen_failures_are_500_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    app = Starlette()

    async def broken(*_: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    app.router.default = broken
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await ErrorGuard(app.router, "api")(scope, receive, send)
    assert sent[0]["status"] == 500
    assert b"nobody" not in sent[1]["body"]
    assert "nobody foresaw this" in capsys.readouterr().out
