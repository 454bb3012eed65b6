"""HTTP/1.1 as strangers speak it: slowly, wrongly, or hoping for another protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aenv import unexpected
from aenv.api import body, protocol
from aenv.api import server as server_module
from tests.unit.api.support import Server, fake_settings, running

SECONDS = 20
"""How long a test waits for what must come."""


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection, and no longer than `SECONDS` for what is done with it."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(SECONDS):
            yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and JSON body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    content = await reader.readexactly(length)
    return int(head.split()[1]), json.loads(content) if content else None


async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send a byte at a time until the connection ends."""
    with suppress(ConnectionError):
        while True:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("start", [b"GET /", b"\r\n", b"GET /health HTTP/1.1\r\nX: "])
async def test_a_head_that_never_ends_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.5)
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(start)
        sending = asyncio.create_task(trickle(writer, b"\r\n" if start == b"\r\n" else b"x"))
        try:
            status, told = await answer(reader)
            assert (status, told["code"]) == (408, 408)
            with suppress(ConnectionError):
                assert await reader.read() == b""
        finally:
            sending.cancel()


async def test_a_connection_without_a_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE", 1)
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, _):
        assert await reader.read() == b""


async def test_what_follows_an_early_answer_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.5)
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert (await answer(reader))[0] == 401
        sending = asyncio.create_task(trickle(writer, b"x"))
        try:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        finally:
            sending.cancel()


async def test_a_body_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT", 0.5)
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        head = f"POST /v2/sandboxes HTTP/1.1\r\nX-API-Key: {server.key}\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b"{")
        status, told = await answer(reader)
        assert (status, told["message"]) == (400, "the request body took more than 0.5 s")


@pytest.mark.parametrize("offer", ["h2c", "websocket", "foo/2"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_offers_of_other_protocols_are_declined(tmp_path: Path, offer: str, chunked: bool) -> None:
    content = b'{"templateID":"nix"}'
    framing = f"Content-Length: {len(content)}"
    if chunked:
        framing = "Transfer-Encoding: chunked"
        content = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    head = (
        f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {{key}}\r\nUpgrade: {offer}\r\n"
        f"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n{framing}\r\n\r\n"
    )
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        for _ in range(2):  # the connection stays in step
            writer.write(head.format(key=server.key).encode() + content)
            status, told = await answer(reader)
            assert (status, told["message"]) == (404, "template 'nix' was not found")
        writer.write(head.format(key=server.key).replace("POST", "GET").encode() + content)
        assert (await answer(reader))[0] == 200


async def test_offers_in_many_requests_at_once_are_declined(tmp_path: Path) -> None:
    count = 2000  # more than functions may be nested
    asked = b"GET /health HTTP/1.1\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
    before = unexpected.ERRORS.labels("loop")._value.get()
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(asked * count)
        for _ in range(count):
            assert (await answer(reader))[0] == 204
    assert unexpected.ERRORS.labels("loop")._value.get() == before


@pytest.mark.parametrize("header", ["X: " + "x" * 9000, "\r\n".join(["X: y"] * 200)], ids=["long", "many"])
async def test_a_handshake_that_cant_be_read_is_refused(tmp_path: Path, header: str) -> None:
    head = (
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{header}\r\n\r\n"
    )
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(head.encode())
        status, told = await answer(reader)
        assert (status, "WebSocket" in told["message"]) == (400, True)
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "request_", [b"nix\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", b"GET /\xe9 HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_request_is_refused_in_the_contracts_form(tmp_path: Path, request_: bytes) -> None:
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(request_)
        status, told = await answer(reader)
        assert (status, told["code"]) == (400, 400)
        assert await reader.read() == b""


async def test_clients_are_asked_whether_they_are_still_there(tmp_path: Path) -> None:
    """The server's end of a quiet connection has TCP's keep-alive timer, 2 in the kernel's table."""
    async with running(fake_settings(tmp_path)) as server, connected(server) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        mine, its = (writer.get_extra_info(name)[1] for name in ("sockname", "peername"))
        while True:
            table = await asyncio.to_thread(Path("/proc/net/tcp").read_text)
            rows = [line.split() for line in table.splitlines()[1:]]
            (timer,) = [row[5] for row in rows if (row[1][-4:], row[2][-4:]) == (f"{its:04X}", f"{mine:04X}")]
            if timer.startswith("02:"):
                break
            await asyncio.sleep(0.05)  # one that repeats what was sent comes before it
