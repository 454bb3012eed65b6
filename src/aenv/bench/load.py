"""Small requests, as many as a server takes. Bare sockets: an HTTP client would itself be the limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import httptools

from aenv.bench.nginx import Address

ANSWER_TIMEOUT = 30.0
"""Seconds after the end of a round in which requests under way may still be answered."""


@dataclass
class Load:
    """What came of one round. `times` are of single requests, ms."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.times) / self.seconds


class _Client(asyncio.Protocol):
    """One connection that sends a request whenever it has the answer to the one before."""

    def __init__(self, request: bytes, end: float, load: Load) -> None:
        self._request = request
        self._end = end
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = False
        self._sent = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def _next(self) -> None:
        self._sent = time.perf_counter()
        if self._sent >= self._end:
            self._transport.close()
            return
        self._waiting = True
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._waiting = False
        if self._parser.get_status_code() == 200:
            self._load.times.append((time.perf_counter() - self._sent) * 1000)
        else:
            self._load.failed += 1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        if self._waiting:
            self._load.failed += 1
        if not self.done.done():
            self.done.set_result(None)


def get_request(address: Address, headers: Mapping[str, str], path: str = "/") -> bytes:
    """The bytes of a GET."""
    lines = [f"GET {path} HTTP/1.1", f"host: {address}", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def run_load(address: Address, headers: Mapping[str, str], *, connections: int, seconds: float) -> Load:
    """Keep `connections` requests under way for so long. Raises OSError if one can't connect."""
    loop = asyncio.get_running_loop()
    request = get_request(address, headers)
    load = Load()
    started = time.perf_counter()
    transports = []
    clients = []
    try:
        for _ in range(connections):
            transport, client = await loop.create_connection(
                lambda: _Client(request, started + seconds, load), address.host, address.port
            )
            transports.append(transport)
            clients.append(client)
        async with asyncio.timeout(seconds + ANSWER_TIMEOUT):
            await asyncio.wait([client.done for client in clients])
    finally:
        for transport in transports:
            transport.abort()
    load.seconds = time.perf_counter() - started
    return load
