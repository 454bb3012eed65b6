"""A sandbox that wants to hurt: whatever it sends, the proxy's memory stays flat and others go on."""

from __future__ import annotations

import asyncio
import resource
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from tests.unit.proxy.support import ID, Proxy, eventually, headers, raw_client, read_head, upstream

MIB = 1 << 20
ENOUGH = 64 * MIB
"""Bytes that no buffer on the way can hold."""


@asynccontextmanager
async def sends(parts: Iterable[bytes]) -> AsyncIterator[tuple[int, list[int]]]:
    """The port of a server that sends `parts`, and how many bytes it could get rid of."""
    taken = [0]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
                taken[0] += len(part)

    async with upstream(handler) as port:
        yield port, taken


async def stalls(taken: list[int]) -> None:
    """Wait until nothing more is taken; fail if there is no end to it."""
    level = -1
    while level != taken[0]:
        level = taken[0]
        assert level < ENOUGH
        await asyncio.sleep(0.3)


def begin(port: int) -> bytes:
    """The head of a request to the sandbox's port."""
    return f"GET / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n".encode()


@pytest.mark.parametrize("unit", [2, 1000, MIB], ids=["tiny", "small", "big"])
async def test_endless_chunks_to_a_client_that_does_not_read(proxy: Proxy, unit: int) -> None:
    chunk = b"%x\r\n%s\r\n" % (unit, bytes(unit))
    chunk *= max(1, 65536 // len(chunk))
    answer = chain([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], repeat(chunk))
    async with sends(answer) as (port, taken), raw_client(proxy.port) as (reader, writer):
        tracemalloc.start()
        try:
            writer.write(begin(port))
            await read_head(reader)
            await stalls(taken)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 4 * MIB  # buffers of the test itself included


@pytest.mark.parametrize(
    "parts",
    [
        chain([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"] * 3, repeat(b"HTTP/1.1 100 X\r\n\r\n" * 1000)),
        chain([b"HTTP/1.1 200 OK\r\n"], repeat(b"X: y\r\n" * 1000)),
        repeat(b"\0" * 65536),
        repeat(b"\r\n" * 1000),
        chain([b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n"], repeat(b"x" * 65536)),
    ],
    ids=["interim answers", "headers", "zeros", "empty lines", "length"],
)
async def test_endless_starts_are_cut(
    proxy: Proxy, session: aiohttp.ClientSession, parts: Iterable[bytes]
) -> None:
    async with (
        sends(parts) as (port, taken),
        asyncio.timeout(30),
        session.get(proxy.url, headers=headers(port)) as response,
    ):
        assert response.status == 502
        assert "could not be read" in (await response.json())["message"]
    assert taken[0] < ENOUGH
    assert proxy.links() == 0


async def test_endless_chunk_extensions_are_cut(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    parts = chain([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"], repeat(b"x" * 65536))
    async with (
        sends(parts) as (port, taken),
        asyncio.timeout(30),
        session.get(proxy.url, headers=headers(port)) as response,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert taken[0] < ENOUGH


async def test_sandbox_that_never_answers_takes_nothing(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with upstream(silent) as port:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        waiting = [asyncio.create_task(session.get(proxy.url, headers=headers(port))) for _ in range(90)]
        await eventually(lambda: proxy.links() == 90)
        async with session.get(proxy.url, headers=headers(app_port)) as response:
            assert response.status == 200  # the sandbox's other ports go on
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB, both ends
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await eventually(lambda: proxy.links() <= 1)


async def test_endless_websocket_messages_to_a_client_that_does_not_read(proxy: Proxy) -> None:
    taken = [0]

    async def flood(connection: ServerConnection) -> None:
        while True:
            await connection.send(bytes(MIB))
            taken[0] += MIB

    async with serve(flood, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{proxy.port}/"
        async with connect(url, additional_headers=headers(port), proxy=None, max_queue=1):
            await stalls(taken)
    await eventually(lambda: proxy.links() == 0)


async def test_websocket_frame_that_claims_to_be_huge(proxy: Proxy) -> None:
    async def handler(connection: ServerConnection) -> None:
        connection.transport.write(b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff" + bytes(MIB))
        await connection.wait_closed()

    async with serve(handler, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{proxy.port}/"
        async with asyncio.timeout(10), connect(url, additional_headers=headers(port), proxy=None) as client:
            await client.wait_closed()
    await eventually(lambda: proxy.links() == 0)
