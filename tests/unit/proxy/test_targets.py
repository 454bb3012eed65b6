"""What a sandbox says about its own ports: the host name its applications expect, and which speak TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from aenv.guest import ENVD_PORT
from aenv.proxy.headers import masked_host
from aenv.sandboxes.models import Endpoint
from aenv.tls.authority import ensure
from tests.unit.proxy.support import ID, Proxy, eventually, headers, read_head, upstream


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """What a server in the sandbox uses: a certificate that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ensure(tmp_path_factory.mktemp("tls"), "in.sandbox").leaf("in.sandbox"))
    return context


@asynccontextmanager
async def tls_app(context: ssl.SSLContext) -> AsyncIterator[int]:
    """An HTTPS application that tells what it was sent, and its port."""

    async def show(request: web.Request) -> web.Response:
        body = await request.read()
        return web.json_response({"host": request.host, "size": len(body), "tls": request.secure})

    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("localhost:${PORT}", "localhost:{port}"), ("app.test", "app.test"), ("${PORT}.x", "{port}.x")],
)
async def test_masked_host(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession, mask: str, expected: str
) -> None:
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, mask_host=mask)
    async with session.get(proxy.url, headers=headers(app_port, Host="pub.lic")) as response:
        pairs = [tuple(pair) for pair in (await response.json())["headers"]]
    assert [value for name, value in pairs if name == "host"] == [expected.format(port=app_port)]
    assert ("x-forwarded-host", "pub.lic") in pairs


async def test_masked_host_of_a_websocket(proxy: Proxy) -> None:
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, mask_host="localhost:${PORT}")

    async def tell(connection: ServerConnection) -> None:
        assert connection.request is not None
        await connection.send(json.dumps(connection.request.headers.get_all("Host")))

    async with serve(tell, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{proxy.port}/"
        async with connect(url, additional_headers=headers(port), proxy=None) as connection:
            assert json.loads(await connection.recv()) == [f"localhost:{port}"]


async def test_https_port(proxy: Proxy, session: aiohttp.ClientSession, tls: ssl.SSLContext) -> None:
    async with tls_app(tls) as port:
        proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, None, frozenset({port}))
        for _ in range(3):
            async with session.post(proxy.url, data=bytes(1 << 20), headers=headers(port)) as response:
                assert await response.json() == {
                    "host": f"127.0.0.1:{proxy.port}",
                    "size": 1 << 20,
                    "tls": True,
                }
        assert proxy.links() == 1  # the handshake is made once


async def test_https_port_of_a_websocket(proxy: Proxy, tls: ssl.SSLContext) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", 0, ssl=tls) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, "in.sandbox", frozenset({port}))
        url = f"ws://127.0.0.1:{proxy.port}/"
        async with connect(url, additional_headers=headers(port), proxy=None) as connection:
            await connection.send("hello")
            assert await connection.recv() == "hello"


async def test_masked_host_is_the_name_asked_for(proxy: Proxy, tmp_path: Path) -> None:
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ensure(tmp_path, "in.sandbox").leaf("in.sandbox"))
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with tls_app(context) as port, aiohttp.ClientSession() as session:
        for mask in ("app.test:${PORT}", "[::1]:${PORT}", None):
            proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, mask, frozenset({port}))
            async with session.get(proxy.url, headers=headers(port)) as response:
                assert response.status == 200
    assert asked == ["app.test", None, None]


async def test_port_that_does_not_speak_tls(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, None, frozenset({app_port}))
    async with session.get(proxy.url, headers=headers(app_port)) as response:
        body = await response.json()
        assert (response.status, body["port"]) == (502, app_port)
        assert "no TLS" in body["message"]
    assert proxy.links() == 0


async def test_https_port_that_is_closed(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    async def nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Nobody comes."""

    async with upstream(nothing) as port:
        pass
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, None, frozenset({port}))
    async with session.get(proxy.url, headers=headers(port)) as response:
        assert response.status == 502
        assert "port is not open" in (await response.json())["message"]


async def test_streams_of_https_ports_are_cut_when_the_vm_stops(
    proxy: Proxy, session: aiohttp.ClientSession, tls: ssl.SSLContext
) -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()

    server = await asyncio.start_server(hangs, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", None, None, None, frozenset({port}))
    async with asyncio.timeout(10), session.get(proxy.url, headers=headers(port)) as response:
        assert await response.content.readexactly(1) == b"x"
        proxy.sandboxes.live.pop(ID).gone.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    server.close()
    await server.wait_closed()
    await eventually(lambda: proxy.links() == 0)


def test_the_agents_port_keeps_the_clients_host() -> None:
    endpoint = Endpoint("127.0.0.1", None, None, mask_host="x.test")
    assert masked_host(endpoint, ENVD_PORT) is None
    assert masked_host(endpoint, 80) == b"x.test"
