"""A guest that wants to hurt: what it sends in place of envd costs the server neither time nor memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat

import pytest

from aenv.errors import AenvError, GuestUnresponsive
from aenv.guest.client import EnvdClient, InitRequest
from tests.unit.guest.support import serving, silent

MIB = 1 << 20
ENOUGH = 64 * MIB
PATIENCE = 0.5
"""Seconds that the client is given for one call."""

Call = Callable[[EnvdClient], Awaitable[object]]

CALLS: dict[str, Call] = {
    "health": lambda client: client.health(timeout=PATIENCE),
    "wait_healthy": lambda client: client.wait_healthy(PATIENCE),
    "init": lambda client: client.init(InitRequest("i1", "t1"), timeout=PATIENCE),
    "freeze": lambda client: client.freeze(timeout=PATIENCE),
    "sync": lambda client: client.sync(timeout=PATIENCE),
    "logs": lambda client: client.logs("", 0, timeout=PATIENCE),
    "unfreeze": lambda client: client.unfreeze(timeout=PATIENCE),
    "warm": lambda client: client.warm(InitRequest("i1", "t1"), timeout=PATIENCE),
    "metrics": lambda client: client.metrics(timeout=PATIENCE),
}

HEAD = b"HTTP/1.1 200 OK\r\n"

FLOODS: dict[str, Callable[[], Iterable[bytes]]] = {
    "garbage": lambda: repeat(b"\xff\x00" * 4096),
    "line ends": lambda: repeat(b"\r\n" * 4096),
    "status line": lambda: chain([b"HTTP/1.1 200 "], repeat(b"x" * 8192)),
    "one header": lambda: chain([HEAD, b"X: "], repeat(b"x" * 8192)),
    "headers": lambda: chain([HEAD], repeat(b"X: y\r\n" * 1000)),
    "interim answers": lambda: repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 300),
    "body": lambda: chain([HEAD, b"Content-Length: 99999999999\r\n\r\n"], repeat(bytes(65536))),
    "error body": lambda: chain([b"HTTP/1.1 500 X\r\n\r\n"], repeat(bytes(65536))),
    "tiny chunks": lambda: chain([HEAD, b"Transfer-Encoding: chunked\r\n\r\n"], repeat(b"1\r\nx\r\n" * 1000)),
    "chunk extension": lambda: chain([HEAD, b"Transfer-Encoding: chunked\r\n\r\n1;"], repeat(b"x" * 8192)),
}


@asynccontextmanager
async def flooding(parts: Iterable[bytes]) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers every request with `parts`, and how many bytes of them were taken."""
    taken = [0]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                taken[0] += len(part)
                await asyncio.sleep(0)  # the client is in the same loop

    async with serving(answer) as url:
        yield url, taken


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("call", CALLS)
async def test_floods(call: str, flood: str) -> None:
    async with flooding(FLOODS[flood]()) as (url, taken), EnvdClient(url) as client:
        tracemalloc.start()
        try:
            async with asyncio.timeout(5 * PATIENCE):
                # A status that says yes is enough of an answer for some; the rest of it is never read.
                with suppress(AenvError):
                    await CALLS[call](client)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * MIB
        level = taken[0]
        await asyncio.sleep(0.05)
        assert taken[0] - level < 4 * MIB, "the connection is still being read"


ERROR_BODIES = {
    "deep": b"[" * 60_000,
    "deep object": b'{"message":' * 10_000,
    "half a character": b'{"code":"internal","message":"\\ud800"}',
    "long": b'{"message":"' + b"x" * 60_000 + b'"}',
    "no text": b'{"message":{"a":[1]},"code":[]}',
    "numbers": b'{"message":1e999,"code":NaN}',
    "no object": b'["error"]',
}


@pytest.mark.parametrize("body", ERROR_BODIES)
@pytest.mark.parametrize("call", CALLS)
async def test_errors_of_every_form(call: str, body: str) -> None:
    content = ERROR_BODIES[body]
    answer = b"HTTP/1.1 418 X\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    async with flooding([answer]) as (url, _), EnvdClient(url) as client:
        with pytest.raises(AenvError) as caught:
            await CALLS[call](client)
        assert len(caught.value.message.encode()) < 10_000


@pytest.mark.parametrize("call", CALLS)
async def test_silence(call: str) -> None:
    async with serving(silent) as url, EnvdClient(url) as client, asyncio.timeout(5 * PATIENCE):
        with pytest.raises(GuestUnresponsive):
            await CALLS[call](client)


@pytest.mark.parametrize("call", CALLS)
async def test_one_byte_at_a_time(call: str) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for byte in HEAD + b"X: y\r\n" * 100_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.01)

    async with serving(drip) as url, EnvdClient(url) as client, asyncio.timeout(5 * PATIENCE):
        with pytest.raises(GuestUnresponsive):
            await CALLS[call](client)
