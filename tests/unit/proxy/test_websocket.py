"""WebSocket through the proxy: messages, sub-protocols, and every way to end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.utils import accept_key

from aenv.sandboxes.models import Endpoint
from tests.unit.proxy.support import (
    ID,
    KEY,
    OTHER,
    Proxy,
    eventually,
    headers,
    raw_client,
    read_head,
    unexpected_errors,
    upstream,
)

BIG = 17 << 20

Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(connection: ServerConnection) -> None:
    """Send everything back."""
    async for message in connection:
        await connection.send(message)


@asynccontextmanager
async def websocket_upstream(handler: Handler) -> AsyncIterator[int]:
    """A WebSocket server in the sandbox."""

    def check(_connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/refuse":
            return _connection.respond(HTTPStatus.IM_A_TEAPOT, "no tea")
        return None

    async with serve(
        handler,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol("two")],
        process_request=check,
        max_size=None,
        select_subprotocol=lambda _c, offered: "two" if "two" in offered else None,  # type: ignore[arg-type, return-value]
    ) as server:
        yield next(iter(server.sockets)).getsockname()[1]


def client(proxy: Proxy, port: int, path: str = "/", **options: object) -> connect:
    """A client of the sandbox's port."""
    url = f"ws://127.0.0.1:{proxy.port}{path}"
    return connect(url, additional_headers=headers(port), max_size=None, proxy=None, **options)  # type: ignore[arg-type]


async def ended(connection: ClientConnection) -> tuple[int | None, str | None]:
    """Code and reason with which the other side closed; None if it just broke off."""
    with pytest.raises(ConnectionClosed) as caught:
        await connection.recv()
    received = caught.value.rcvd
    return (None, None) if received is None else (received.code, received.reason)


async def test_messages_of_every_kind(proxy: Proxy) -> None:
    async with websocket_upstream(echo) as port, client(proxy, port, "/a%2Fb?c=%20") as connection:
        for message in ("text ü", b"\x00binary", "", b"", "x" * 200_000):
            await connection.send(message)
            assert await connection.recv() == message
        await connection.send(["frag", "ments"])
        assert await connection.recv() == "fragments"
        async with asyncio.timeout(5):
            await (await connection.ping())


async def test_big_messages(proxy: Proxy) -> None:
    async with websocket_upstream(echo) as port, client(proxy, port) as connection:
        await connection.send(b"x" * BIG)
        assert len(await connection.recv()) == BIG


async def test_handshake_crosses(proxy: Proxy) -> None:
    seen: list[Request] = []

    async def note(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request)
        await connection.wait_closed()

    offered = [Subprotocol("one"), Subprotocol("two")]
    sent = headers(0, **{"X-API-KEY": KEY, "Cookie": "a=b", "Origin": "http://o"})
    async with websocket_upstream(note) as port:
        sent["E2b-Sandbox-Port"] = str(port)
        url = f"ws://127.0.0.1:{proxy.port}/a%2Fb?c=%20"
        async with connect(url, additional_headers=sent, subprotocols=offered, proxy=None) as connection:
            assert connection.subprotocol == "two"
            await eventually(lambda: bool(seen))
    (request,) = seen
    assert request.path == "/a%2Fb?c=%20"
    assert request.headers["Host"] == f"127.0.0.1:{proxy.port}"
    assert request.headers["Cookie"] == "a=b"
    assert request.headers["Origin"] == "http://o"
    assert request.headers["X-Forwarded-Proto"] == "http"
    assert "X-API-KEY" not in request.headers


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "bye"), (3000, "own"), (4999, "ü")])
async def test_sandbox_closes(proxy: Proxy, code: int, reason: str) -> None:
    async def close(connection: ServerConnection) -> None:
        await connection.send("last words")
        await connection.close(code, reason)

    async with websocket_upstream(close) as port, client(proxy, port) as connection:
        assert await connection.recv() == "last words"
        assert await ended(connection) == (code, reason)
    await eventually(lambda: proxy.links() == 0)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (3000, "own")])
async def test_client_closes(proxy: Proxy, code: int, reason: str) -> None:
    closed: list[tuple[int | None, str | None]] = []

    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.append((connection.close_code, connection.close_reason))

    async with websocket_upstream(wait) as port:
        async with client(proxy, port) as connection:
            await connection.close(code, reason)
        await eventually(lambda: bool(closed))
    assert closed == [(code, reason)]


async def test_broken_off_by_the_sandbox(proxy: Proxy) -> None:
    async def break_off(connection: ServerConnection) -> None:
        connection.transport.abort()

    async with websocket_upstream(break_off) as port, client(proxy, port) as connection:
        assert await ended(connection) == (None, None)


async def test_broken_off_by_the_client(proxy: Proxy) -> None:
    closed: list[int | None] = []

    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.append(connection.close_code)

    async with websocket_upstream(wait) as port:
        async with client(proxy, port) as connection:
            connection.transport.abort()
        await eventually(lambda: bool(closed))
    assert closed == [1006]
    await eventually(lambda: proxy.links() == 0)


async def test_cut_when_the_vm_stops(proxy: Proxy) -> None:
    async with websocket_upstream(echo) as port, client(proxy, port) as connection:
        await connection.send("x")
        assert await connection.recv() == "x"
        proxy.sandboxes.live.pop(ID).gone.set()
        async with asyncio.timeout(5):
            assert await ended(connection) == (None, None)


async def refused(proxy: Proxy, port: int, path: str = "/") -> InvalidStatus:
    """The refusal of a handshake."""
    with pytest.raises(InvalidStatus) as caught:
        async with client(proxy, port, path):
            pass
    return caught.value


async def test_refusals(proxy: Proxy) -> None:
    async with websocket_upstream(echo) as port:
        theirs = await refused(proxy, port, "/refuse")
        assert theirs.response.status_code == 418
        assert b"no tea" in bytes(theirs.response.body or b"")
        proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, "secret")
        assert (await refused(proxy, port)).response.status_code == 403
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None)
    closed = await refused(proxy, port)
    assert closed.response.status_code == 502
    assert b"port is not open" in bytes(closed.response.body or b"")
    proxy.sandboxes.live[OTHER] = proxy.sandboxes.live.pop(ID)
    assert b"was not found" in bytes((await refused(proxy, port)).response.body or b"")
    assert (await refused(proxy, 0)).response.status_code == 400


async def test_odd_handshakes_are_refused(proxy: Proxy) -> None:
    async with websocket_upstream(echo) as port, raw_client(proxy.port) as (reader, writer):
        writer.write(
            f"GET / HTTP/1.1\r\nHost: [::1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


def handshake(port: int) -> bytes:
    """A WebSocket's handshake as a client sends it."""
    return (
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("early", [b"", b"\xff" * 20, b"\x81\x02hi"], ids=["nothing", "garbage", "unmasked"])
@pytest.mark.parametrize("agrees", [True, False])
async def test_clients_that_leave_or_babble_in_the_handshake_are_no_failure(
    proxy: Proxy, early: bytes, agrees: bool
) -> None:
    noted = unexpected_errors()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        asked.set()
        await answer.wait()
        key = re.search(rb"(?i)sec-websocket-key: *(\S+)", head)
        assert key is not None
        accepted = accept_key(key[1].decode()) if agrees else "no"
        writer.write(
            b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
            + accepted.encode()
            + b"\r\n\r\n\x81\x02ok"
        )
        await writer.drain()
        await reader.read()

    async with upstream(slow) as port:
        async with raw_client(proxy.port) as (_, writer):
            writer.write(handshake(port))
            await asyncio.wait_for(asked.wait(), 10)
            writer.write(early)
            await writer.drain()
        answer.set()
        await eventually(lambda: proxy.links() == 0, 10)
    assert unexpected_errors() == noted
    assert failures == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 418 X\r\nDate: a\r\nDate: b\r\nContent-Type: a/b\r\nContent-Type: c/d\r\n\r\n", 418),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 502),
    ],
)
async def test_refusals_that_make_no_sense(proxy: Proxy, answer: bytes, status: int) -> None:
    noted = unexpected_errors()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer)

    async with upstream(refuses) as port, raw_client(proxy.port) as (reader, writer):
        writer.write(handshake(port))
        assert (await read_head(reader)).startswith(f"HTTP/1.1 {status} ".encode())
    assert unexpected_errors() == noted
