"""One HTTP/1.1 connection to a port in a sandbox, as a stream in both directions.

Made for a proxy: header names, values and order stay as they are, nothing is decompressed, redirected or
buffered beyond a bound, and an answer that breaks off is told from one that ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import httptools

READ_BUFFER = 256 * 1024
"""Bytes of an answer held for a slow client before the sandbox is made to wait."""

CHUNK_COST = 64
"""Bytes that a part of an answer takes in memory beside its content: parts can be of one byte each."""

MAX_HEAD = 256 * 1024
"""Bytes of an answer's head, of its trailers or between two parts of its body: the parser keeps them all."""


def other_coding(headers: list[tuple[bytes, bytes]]) -> str | None:
    """A transfer coding besides `chunked`, which is the only one that can be passed on."""
    for name, value in headers:
        if name.lower() == b"transfer-encoding" and value.strip().lower() not in {b"chunked", b"identity"}:
            return value.decode("latin-1")
    return None


class UpstreamLost(Exception):
    """The connection ended, or what came over it isn't HTTP."""


@dataclass(slots=True)
class ResponseHead:
    """Status and headers of an answer; header names are as sent."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    framed: bool = False
    """Whether the end of the body shows in the stream itself; else the end of the connection ends it."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time: `begin`, then `write` and `head`/`read` concurrently."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._writable: asyncio.Future[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._method = b""
        self._busy = False
        self._reset()

    def _reset(self) -> None:
        self._head = ResponseHead()
        self._head_complete = False
        self._complete = False
        self._keep_alive = False
        self._error: UpstreamLost | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._unaccounted = 0
        self.answered = False
        """Whether any byte of the answer has come."""

    @property
    def usable(self) -> bool:
        """Whether another exchange can begin."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not self._busy

    @property
    def answering(self) -> bool:
        """Whether the head of the answer has come."""
        return self._head_complete

    def begin(self, method: bytes, head: bytes) -> None:
        """Start an exchange by sending the request's head. The connection must be usable."""
        self._reset()
        self._busy = True
        self._method = method
        self._send(head)

    async def write(self, data: bytes) -> None:
        """Send a part of the request's body; waits while the sandbox doesn't take it."""
        self._send(data)
        if self._writable is not None:
            await self._writable

    def _send(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._error or UpstreamLost("the connection is closed")
        transport.write(data)

    async def head(self) -> ResponseHead:
        """The answer's head. Raises `UpstreamLost`."""
        while not self._head_complete:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """The next part of the answer's body; empty at its end. Raises `UpstreamLost` if it breaks off."""
        while not self._chunks:
            if self._complete:
                return b""
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    def finish(self, *, request_sent: bool) -> bool:
        """End the exchange. True if the connection can be used again; else it is closed."""
        self._busy = False
        answered = self._complete and self._keep_alive and not self._chunks
        if answered and request_sent and self.usable:
            return True
        self.abort()
        return False

    def abort(self) -> None:
        """Close at once. Whoever waits for the answer gets `UpstreamLost`."""
        if self._error is None and not self._complete:
            self._error = UpstreamLost("the connection was broken off")
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._wakeup = self._loop.create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _fail(self, problem: str) -> None:
        if self._error is None and not self._complete:
            self._error = UpstreamLost(problem)
        self.abort()
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        self.answered = True
        if not self._busy:
            self.abort()  # a server that speaks without being asked can't be followed
            return
        self._unaccounted += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it changed to another protocol")
        except httptools.HttpParserError as error:
            self._fail(f"it isn't HTTP ({error})")
        if self._unaccounted > MAX_HEAD:
            self._fail(f"its headers are larger than {MAX_HEAD} bytes")

    def eof_received(self) -> bool:
        """Part of `asyncio.Protocol`: an end of the answer ends the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        if self._error is None and not self._complete:
            if self._head_complete and not self._head.framed and exc is None:
                self._complete = True
            else:
                self._error = UpstreamLost("the connection was closed before the answer was complete")
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, for trailers too."""
        if not self._head_complete:
            self._head.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._head_complete:  # of a second answer, which nobody asked for
            return
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer, such as 100 Continue; a sandbox could send them without end
            self._head.headers.clear()
            return
        self._unaccounted = 0
        head = self._head
        head.status = status
        names = {name.lower() for name, _ in head.headers}
        head.framed = not names.isdisjoint({b"content-length", b"transfer-encoding"})
        if (coding := other_coding(head.headers)) is not None:
            self._fail(f"its transfer coding is {coding!r}")
            return
        self._head_complete = True
        if self._method == b"HEAD" or status in {204, 304}:
            head.framed = True
        if self._method == b"HEAD":
            self._complete = True  # the parser doesn't know the method and would wait for a body
        self._wake()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        if self._complete:  # a body where there can be none, or a second answer that nobody asked for
            return
        self._chunks.append(body)
        self._buffered += len(body) + CHUNK_COST
        if self._buffered > READ_BUFFER and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """Called by the parser, after interim answers too."""
        if self._head_complete and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()
            self._wake()

    def on_message_begin(self) -> None:
        """Called by the parser, for every interim answer too."""
        if self._complete:  # a second answer that nobody asked for
            self._keep_alive = False
