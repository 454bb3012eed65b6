"""The proxy's connections to sandboxes: reused for a moment, and broken off when their sandbox stops."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from aenv.proxy.connection import Connection
from aenv.proxy.headers import masked_host
from aenv.proxy.sockets import (
    CLIENT_CONTEXT,
    CONNECT_TIMEOUT,
    TLS_TIMEOUT,
    NotTls,
    open_socket,
    server_name,
)
from aenv.sandboxes.models import Endpoint
from aenv.tasks import cancel

IDLE_TIME = 1.5
"""Seconds that an unused connection is kept: below every common server's own limit (2 s and more), so that
a request doesn't meet a connection that its server is just closing."""

MAX_IDLE = 64
"""Unused connections kept per port of a sandbox."""


class Link(Protocol):
    """Anything that carries traffic of a sandbox."""

    def abort(self) -> None:
        """Break off at once."""


@dataclass
class _Traffic:
    """All traffic of one running VM."""

    watcher: asyncio.Task[None]
    links: set[Link] = field(default_factory=set)
    idle: defaultdict[int, list[tuple[float, Connection]]] = field(default_factory=lambda: defaultdict(list))


class Pool:
    """Owns every connection to a sandbox. For use within one event loop.

    A VM that is gone sends no packets, not even to say so, and its address may soon be another's. So each
    endpoint that has traffic has a task that breaks everything off when the endpoint is gone.
    """

    def __init__(self) -> None:
        self._traffic: dict[Endpoint, _Traffic] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def reuse(self, endpoint: Endpoint, port: int) -> Connection | None:
        """An open connection that nobody uses, the most recently used first."""
        traffic = self._traffic.get(endpoint)
        idle = [] if traffic is None else traffic.idle[port]
        while idle:
            _, connection = idle.pop()
            if connection.usable:
                return connection
            self.remove(endpoint, connection)
        return None

    async def connect(self, endpoint: Endpoint, port: int) -> Connection:
        """A new connection, over TLS where the port speaks it.

        Raises `ConnectionRefusedError`, `TimeoutError` or another `OSError`, and `NotTls`.
        """
        if port in endpoint.https_ports:
            connection = await _connect_tls(endpoint, port)
        else:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(Connection, endpoint.host, port)
        self.add(endpoint, connection)
        return connection

    def release(self, endpoint: Endpoint, port: int, connection: Connection, *, request_sent: bool) -> None:
        """Give a connection back after an exchange; it is kept or closed."""
        traffic = self._traffic.get(endpoint)
        again = connection.finish(request_sent=request_sent)
        if again and traffic is not None and len(traffic.idle[port]) < MAX_IDLE:
            loop = asyncio.get_running_loop()
            traffic.idle[port].append((loop.time() + IDLE_TIME, connection))
            if self._sweep is None:
                self._sweep = loop.call_later(IDLE_TIME, self._close_idle)
        else:
            connection.abort()
            self.remove(endpoint, connection)

    def add(self, endpoint: Endpoint, link: Link) -> None:
        """Have `link` broken off when the sandbox's VM stops."""
        traffic = self._traffic.get(endpoint)
        if traffic is None:
            watcher = asyncio.create_task(self._watch(endpoint))
            traffic = self._traffic[endpoint] = _Traffic(watcher)
        traffic.links.add(link)

    def remove(self, endpoint: Endpoint, link: Link) -> None:
        """Forget a link that has ended."""
        traffic = self._traffic.get(endpoint)
        if traffic is not None:
            traffic.links.discard(link)
            if not traffic.links:
                del self._traffic[endpoint]
                traffic.watcher.cancel()

    async def close(self) -> None:
        """Break off everything."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        every = list(self._traffic.values())
        try:
            await cancel(*(traffic.watcher for traffic in every))
        finally:
            for traffic in every:
                _break_off(traffic)
            self._traffic.clear()

    async def _watch(self, endpoint: Endpoint) -> None:
        await endpoint.gone.wait()
        _break_off(self._traffic.pop(endpoint))

    def _close_idle(self) -> None:
        """Close what has been idle for too long; runs as a timer while anything is idle."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        left = False
        for endpoint, traffic in list(self._traffic.items()):
            for port, idle in list(traffic.idle.items()):
                over = [entry[1] for entry in idle if entry[0] <= now or not entry[1].usable]
                traffic.idle[port] = [entry for entry in idle if entry[1] not in over]
                for connection in over:
                    connection.abort()
                    self.remove(endpoint, connection)
                left = left or bool(traffic.idle[port])
        self._sweep = loop.call_later(IDLE_TIME / 2, self._close_idle) if left else None


async def _connect_tls(endpoint: Endpoint, port: int) -> Connection:
    opened = await open_socket(endpoint, port)
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection,
            sock=opened,
            ssl=CLIENT_CONTEXT,
            server_hostname=server_name(masked_host(endpoint, port)),
            ssl_handshake_timeout=TLS_TIMEOUT,
        )
    except OSError as error:  # an SSLError is one
        opened.close()
        raise NotTls(f"no TLS ({error})") from error
    except BaseException:
        opened.close()
        raise
    return connection


def _break_off(traffic: _Traffic) -> None:
    for link in traffic.links:
        link.abort()
