"""HTTP through the proxy, over real sockets on both sides."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from tests.unit.proxy.support import (
    ID,
    KEY,
    Proxy,
    eventually,
    headers,
    raw_client,
    read_head,
    running_proxy,
    upstream,
)

MIB = 1 << 20


async def test_request_arrives_as_it_was_sent(proxy: Proxy, app_port: int) -> None:
    sent = (
        f"PUT /a%2Fb//c%20d?x=%31&y HTTP/1.1\r\nHost: my.host:99\r\nE2b-Sandbox-Id: {ID}\r\n"
        f"E2b-Sandbox-Port: {app_port}\r\nX-Two: 1\r\nX-Two: 2\r\nX-API-KEY: {KEY}\r\n"
        f"Authorization: bearer  {KEY}\r\nX-Access-Token: envd\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
        "TE: trailers\r\nX-Forwarded-For: 192.0.2.9\r\nAccept-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    )
    async with raw_client(proxy.port) as (reader, writer):
        writer.write(sent.encode())
        answer = await reader.read()
    seen = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert seen["method"] == "PUT"
    assert seen["path"] == "/a%2Fb//c%20d?x=%31&y"
    pairs = [tuple(pair) for pair in seen["headers"]]
    for pair in (
        ("host", "my.host:99"),
        ("x-two", "1"),
        ("x-two", "2"),
        ("x-access-token", "envd"),
        ("accept-encoding", "gzip"),
        ("x-forwarded-for", "192.0.2.9, 127.0.0.1"),
        ("x-forwarded-host", "my.host:99"),
        ("x-forwarded-proto", "http"),
    ):
        assert pair in pairs
    assert {"x-api-key", "authorization", "x-hop", "te", "connection"}.isdisjoint(name for name, _ in pairs)


async def test_keys_that_are_not_ours_pass(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    sent = headers(app_port, **{"X-API-KEY": "theirs", "Authorization": "Basic dXNlcjo="})
    async with session.get(proxy.url + "/x", headers=sent) as response:
        pairs = [tuple(pair) for pair in (await response.json())["headers"]]
    assert ("x-api-key", "theirs") in pairs
    assert ("authorization", "Basic dXNlcjo=") in pairs


async def test_agentenv_headers_and_host_route(app_port: int, session: aiohttp.ClientSession) -> None:
    async with running_proxy(domain="sb.test") as proxy:
        named = {"x-agentenv-sandbox-id": ID, "x-agentenv-target-port": str(app_port)}
        async with session.get(proxy.url + "/proxy/x?y", headers=named) as response:
            assert (await response.json())["path"] == "/x?y"
        host = {"Host": f"{app_port}-{ID}.sb.test"}
        async with session.options(proxy.url + "/files", headers=host) as response:
            assert (await response.json())["method"] == "OPTIONS"


async def test_everything_else_is_the_apis(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    async with session.get(proxy.url + "/sandboxes") as response:
        assert response.status == 418


async def test_answer_arrives_as_it_was_sent(proxy: Proxy) -> None:
    answer = (
        b"HTTP/1.1 299 Odd\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Encoding: gzip\r\n"
        b"Connection: X-Hop\r\nX-Hop: 1\r\nX-Latin: \xe9\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x00"
    )

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer)

    async with upstream(answers) as port, raw_client(proxy.port) as (reader, writer):
        for _ in range(3):
            writer.write(
                f"GET / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n".encode()
            )
            head = await read_head(reader)
            assert head.startswith(b"HTTP/1.1 299 ")
            for line in (b"set-cookie: a=1", b"set-cookie: b=2", b"content-encoding: gzip", b"x-latin: \xe9"):
                assert line in head
            assert b"x-hop" not in head
            assert b"link" not in head
            assert await reader.readexactly(3) == b"\x1f\x8b\x00"
        assert proxy.links() == 1  # one connection to the sandbox served all


async def test_both_directions_stream(proxy: Proxy, app_port: int, session: aiohttp.ClientSession) -> None:
    received = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await received.wait()  # the rest is sent only after the first part came back
        yield b"second"

    async with asyncio.timeout(10):
        async with session.post(proxy.url + "/echo", data=body(), headers=headers(app_port)) as response:
            assert await response.content.readany() == b"first"
            received.set()
            assert await response.read() == b"second"


async def test_server_sent_events_come_one_by_one(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    seen = asyncio.Queue[None]()

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            writer.write(b"data: %d\n\n" % number)
            await seen.get()

    async with upstream(events) as port, session.get(proxy.url, headers=headers(port)) as response:
        for number in range(3):
            assert await response.content.readuntil(b"\n\n") == b"data: %d\n\n" % number
            seen.put_nowait(None)
        assert await response.read() == b""  # an answer without a length ends with its connection


@pytest.mark.parametrize("length", [True, False])
async def test_big_bodies_take_no_memory(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession, *, length: bool
) -> None:
    size, chunk = 64 * MIB, bytes(MIB)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // MIB):
            yield chunk

    sent = headers(app_port) | ({"Content-Length": str(size)} if length else {})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 0
    async with session.post(proxy.url + "/echo", data=body(), headers=sent) as response:
        assert response.headers["X-Length"] == (str(size) if length else "None")
        async for part in response.content.iter_any():
            total += len(part)
    assert total == size
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 * 1024
    )  # KiB, both servers included


async def test_slow_client_holds_the_sandbox_back(proxy: Proxy) -> None:
    written = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(MIB))
            await writer.drain()
            written += 1

    async with upstream(floods) as port, raw_client(proxy.port) as (reader, writer):
        writer.write(f"GET / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n".encode())
        await read_head(reader)
        level = -1
        while level != written:
            level = written
            await asyncio.sleep(0.3)
        assert written < 40  # sockets and buffers hold some; without a bound it would go on


async def test_head_and_bodyless_answers_keep_the_connection_in_step(
    proxy: Proxy, session: aiohttp.ClientSession
) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if head.startswith(b"HEAD"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            elif b"/304" in head:
                writer.write(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n")
            elif b"/204" in head:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with upstream(answers) as port:
        for method, path, status, body in (
            ("HEAD", "/", 200, b""),
            ("GET", "/304", 304, b""),
            ("GET", "/204", 204, b""),
            ("GET", "/", 200, b"ok"),
        ) * 2:
            async with session.request(method, proxy.url + path, headers=headers(port)) as response:
                assert (response.status, await response.read()) == (status, body)


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_answer_that_breaks_off_breaks_off(
    proxy: Proxy, session: aiohttp.ClientSession, framing: bytes
) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n5\r\nhello\r\n")
        await writer.drain()

    async with upstream(breaks) as port, session.get(proxy.url, headers=headers(port)) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n\r\nx",
        b"",
    ],
    ids=["chunked", "length", "until the end", "not begun"],
)
async def test_streams_are_cut_when_the_vm_stops(
    proxy: Proxy, session: aiohttp.ClientSession, begun: bytes
) -> None:
    arrived = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(begun)
        arrived.set()
        await reader.read()

    async def stop() -> None:
        await arrived.wait()
        proxy.sandboxes.live.pop(ID).gone.set()

    async with upstream(hangs) as port, asyncio.timeout(10), asyncio.TaskGroup() as group:
        if not begun:
            group.create_task(stop())
        async with session.get(proxy.url, headers=headers(port)) as response:
            if begun:
                assert await response.content.readexactly(1) == b"x"
                await stop()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            else:
                assert response.status == 502
                assert "was not found" in (await response.json())["message"]


async def test_client_that_leaves_ends_the_request_in_the_sandbox(proxy: Proxy) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        began.set()
        try:
            await reader.read()
        finally:
            ended.set()

    async with upstream(waits) as port:
        async with raw_client(proxy.port) as (_, writer):
            sent = f"GET / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n"
            writer.write(sent.encode())
            await began.wait()
        async with asyncio.timeout(5):
            await ended.wait()
        await eventually(lambda: proxy.links() == 0)


async def test_answer_before_the_body_is_read(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield bytes(MIB)

    async with (
        upstream(refuses) as port,
        asyncio.timeout(10),
        session.post(proxy.url, data=body(), headers=headers(port)) as response,
    ):
        assert (response.status, await response.read()) == (413, b"no")


async def test_reused_connection_that_was_closed_is_replaced(
    proxy: Proxy, session: aiohttp.ClientSession
) -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await read_head(reader)  # a second request is taken and not answered

    async with upstream(once) as port:
        for _ in range(2):
            async with session.get(proxy.url, headers=headers(port)) as response:
                assert await response.read() == b"ok"
        assert connections == 2
        async with session.post(proxy.url, headers=headers(port), data=b"x") as response:
            assert response.status == 502  # it may have been carried out, so it isn't sent again


async def test_idle_connections_are_closed(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    async with session.get(proxy.url, headers=headers(app_port)) as response:
        await response.read()
    assert proxy.links() == 1
    await eventually(lambda: proxy.links() == 0)


async def test_many_at_once(proxy: Proxy, app_port: int, session: aiohttp.ClientSession) -> None:
    async def one(number: int) -> None:
        async with session.post(
            proxy.url + "/echo", data=b"%d" % number * 99, headers=headers(app_port)
        ) as r:
            assert await r.read() == b"%d" % number * 99

    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(one(number))
    await eventually(lambda: proxy.links() == 0)


async def test_stopping_server_breaks_off_what_does_not_end() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nx")
        await reader.read()

    async with upstream(hangs) as port, AsyncExitStack() as stack:
        async with running_proxy() as proxy, asyncio.timeout(10):
            reader, writer = await stack.enter_async_context(raw_client(proxy.port))
            sent = f"GET / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n\r\n"
            writer.write(sent.encode())
            await read_head(reader)
            assert await reader.readexactly(6) == b"1\r\nx\r\n"
        assert await reader.read() == b""  # no "0", so the client sees that it isn't the end


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Transfer-Encoding: chunked, identity",
        "X: a\x00b",
    ],
)
async def test_ambiguous_requests_are_refused(proxy: Proxy, app_port: int, framing: str) -> None:
    async with raw_client(proxy.port) as (reader, writer):
        route = f"E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {app_port}\r\n"
        writer.write(f"POST /x HTTP/1.1\r\n{route}{framing}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    assert proxy.links() == 0
