"""The proxy on a real port, in front of an API that only says 418, with sandboxes at fixed addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aenv.api.server import _HttpServer
from aenv.errors import SandboxNotFound
from aenv.proxy.app import ProxyApp
from aenv.sandboxes.base import Sandboxes
from aenv.sandboxes.models import Endpoint
from aenv.unexpected import ERRORS

ID = "i0123456789abcdefghij"
OTHER = "iother000000000000000"
KEY = "e2b_" + "a" * 40

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FixedSandboxes:
    """Just what the proxy asks of the service."""

    def __init__(self) -> None:
        self.live: dict[str, Endpoint] = {ID: Endpoint("127.0.0.1", None, None)}
        self.resumable: dict[str, Endpoint | Exception] = {}
        self.resumed: list[str] = []

    def live_endpoint(self, sandbox_id: str) -> Endpoint | None:
        """As `Sandboxes.live_endpoint`."""
        return self.live.get(sandbox_id)

    async def get(self, sandbox_id: str) -> Any:
        """As `Sandboxes.get`, as far as the proxy looks."""
        found = self.resumable.get(sandbox_id, SandboxNotFound(sandbox_id))
        if isinstance(found, SandboxNotFound):
            raise found
        return SimpleNamespace(traffic_token=getattr(found, "traffic_token", None))

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """As `Sandboxes.endpoint`."""
        found = self.resumable.get(sandbox_id, SandboxNotFound(sandbox_id))
        if isinstance(found, Exception):
            raise found
        self.resumed.append(sandbox_id)
        return found


@dataclass
class Proxy:
    """A running proxy."""

    port: int
    app: ProxyApp
    sandboxes: FixedSandboxes = field(default_factory=FixedSandboxes)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def links(self) -> int:
        """Connections to sandboxes that are open now."""
        return sum(len(traffic.links) for traffic in self.app._pool._traffic.values())


def headers(port: int, **more: str) -> dict[str, str]:
    """The headers that lead to a port of the sandbox."""
    return {"E2b-Sandbox-Id": ID, "E2b-Sandbox-Port": str(port)} | more


async def _api(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("the api", 418)(scope, receive, send)


@asynccontextmanager
async def running_proxy(
    domain: str | None = None, *, max_upload_idle: float | None = 60
) -> AsyncIterator[Proxy]:
    """A proxy for the time of the block, on the server's own settings of uvicorn."""
    sandboxes = FixedSandboxes()
    app = ProxyApp(
        _api, cast("Sandboxes", sandboxes), domain=domain, api_key=KEY, max_upload_idle=max_upload_idle
    )
    server: uvicorn.Server = _HttpServer(app)
    server.config.timeout_graceful_shutdown = 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield Proxy(listener.getsockname()[1], app, sandboxes)
        finally:
            server.should_exit = True
            await serving
            assert not app._pool._traffic


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[int]:
    """The port of a server in the "sandbox" that does exactly what `handler` does."""
    running: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await eventually(lambda: not running)
        await server.wait_closed()


def unexpected_errors() -> float:
    """How many unexpected errors this process has seen."""
    (family,) = ERRORS.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of a request or an answer."""
    return await reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- anything may be waited for
            await asyncio.sleep(0.01)
