"""Many open streams and WebSockets: both ends of them, the one in the sandbox and the client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from aenv.bench.load import get_request
from aenv.bench.nginx import Address

TIMEOUT = 30.0
"""Seconds for one answer or message."""

_EVENTS = "/events"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


class StandIn:
    """What stands in for an application in a guest: `/events` is a stream, all else a WebSocket echo."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self, address: Address) -> AsyncIterator[None]:
        """Serve until the block ends."""
        server = await asyncio.start_server(self._serve, address.host, address.port, backlog=2048)
        try:
            yield
        finally:
            server.close()
            for writer in list(self._connections):
                writer.transport.abort()
            await server.wait_closed()

    def publish(self) -> None:
        """Send the present time to every open stream."""
        event = b"data: %r\n\n" % time.perf_counter()
        for writer in self._listeners:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                if head.split(b" ", 2)[1] == _EVENTS.encode():
                    await self._stream(reader, writer)
                else:
                    await _echo(head, reader, writer)
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self._listeners.add(writer)
        try:
            await reader.read()
        finally:
            self._listeners.discard(writer)


async def _echo(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A WebSocket that sends short messages back, unmasked."""
    key = next(line for line in head.splitlines() if line.lower().startswith(b"sec-websocket-key"))
    accepted = base64.b64encode(hashlib.sha1(key.split(b": ", 1)[1].strip() + _GUID).digest())  # noqa: S324 -- RFC 6455
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: " + accepted + b"\r\n\r\n"
    )
    while True:
        start = await reader.readexactly(6)  # a client's frame: type, length below 126, mask
        masked = await reader.readexactly(start[1] & 127)
        data = bytes(byte ^ start[2 + index % 4] for index, byte in enumerate(masked))
        writer.write(bytes([start[0], len(data)]) + data)


class Connection:
    """The client's end. Close it with `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def event(self) -> float:
        """Milliseconds from its sending to now of the next event."""
        async with asyncio.timeout(TIMEOUT):
            line = await self._reader.readuntil(b"\n\n")
        return (time.perf_counter() - float(line.rpartition(b"data: ")[2])) * 1000

    async def echo(self) -> None:
        """Send a message and get it back. Raises EOFError or ConnectionError."""
        mask = os.urandom(4)
        data = b"here"
        self._writer.write(
            bytes([0x81, 0x80 | len(data)]) + mask + bytes(a ^ b for a, b in zip(data, mask, strict=True))
        )
        async with asyncio.timeout(TIMEOUT):
            answer = await self._reader.readexactly(2 + len(data))
        if answer[2:] != data:
            raise ConnectionError(f"the WebSocket sent {answer!r}")

    def close(self) -> None:
        """End it at once."""
        self._writer.transport.abort()


async def open_stream(address: Address, headers: Mapping[str, str]) -> Connection:
    """A stream of events whose head has come."""
    return await _open(address, headers, _EVENTS, 200)


async def open_websocket(address: Address, headers: Mapping[str, str]) -> Connection:
    """A WebSocket after its handshake."""
    own = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
    }
    return await _open(address, {**headers, **own}, "/socket", 101)


async def _open(address: Address, headers: Mapping[str, str], path: str, status: int) -> Connection:
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(get_request(address, headers, path))
            head = await reader.readuntil(b"\r\n\r\n")
            if int(head.split(b" ", 2)[1]) != status:
                raise ConnectionError(f"the answer was {head.splitlines()[0]!r}")
        except BaseException:
            writer.transport.abort()
            raise
    return Connection(reader, writer)
