"""A proxy, an application in the sandbox and a client session for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.unit.proxy.support import Proxy, running_proxy


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A running proxy without a domain."""
    async with running_proxy() as started:
        yield started


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client that leaves bodies as they are."""
    async with aiohttp.ClientSession(auto_decompress=False) as opened:
        yield opened


@pytest.fixture
async def app_port() -> AsyncIterator[int]:
    """An aiohttp application in the sandbox."""

    async def echo(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"X-Length": str(request.content_length)})
        await response.prepare(request)
        async for chunk in request.content.iter_any():
            await response.write(chunk)
        return response

    async def show(request: web.Request) -> web.Response:
        seen = {"path": request.raw_path, "headers": [[k.lower(), v] for k, v in request.headers.items()]}
        return web.json_response(seen | {"method": request.method})

    app = web.Application(client_max_size=0)
    app.router.add_post("/echo", echo)
    app.router.add_route("*", "/{path:.*}", show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()
