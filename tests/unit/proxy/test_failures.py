"""What clients are told when a request can't pass or isn't answered."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import aiohttp
import pytest

from aenv.errors import Conflict, Overloaded
from aenv.guest import ENVD_PORT
from aenv.proxy.connection import MAX_HEAD
from aenv.sandboxes.models import Endpoint
from tests.unit.proxy.support import ID, OTHER, Proxy, headers, raw_client, read_head, upstream


async def check(
    session: aiohttp.ClientSession, proxy: Proxy, sent: dict[str, str], status: int, word: str
) -> None:
    """Send a request and expect a JSON failure."""
    async with session.get(proxy.url + "/x", headers=sent) as response:
        body = await response.json()
        assert (response.status, body["code"]) == (status, status)
        assert word in body["message"]


async def test_failures(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    await check(session, proxy, headers(closed), 502, "port is not open")
    await check(session, proxy, headers(closed, **{"E2b-Sandbox-Id": OTHER}), 502, "was not found")
    await check(session, proxy, headers(0), 400, "port")
    proxy.sandboxes.resumable[OTHER] = Conflict("it is being paused")
    await check(session, proxy, headers(1, **{"E2b-Sandbox-Id": OTHER}), 409, "paused")
    proxy.sandboxes.resumable[OTHER] = Overloaded("full", retry_after=3)
    await check(session, proxy, headers(1, **{"E2b-Sandbox-Id": OTHER}), 503, "full")
    proxy.sandboxes.live[OTHER] = Endpoint("255.255.255.255", None, None)  # no TCP can go there
    await check(session, proxy, headers(1, **{"E2b-Sandbox-Id": OTHER}), 502, "can't be reached")


@pytest.mark.parametrize(
    "answer", [b"nix\r\n\r\n", b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n", b"", b"HTTP/1.1 999 X\r\n\r\n"]
)
async def test_answers_that_are_none(proxy: Proxy, session: aiohttp.ClientSession, answer: bytes) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(answer)

    async with upstream(answers) as port:
        await check(session, proxy, headers(port), 502, "could not be read")


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "]
)
async def test_endless_headers_are_cut(proxy: Proxy, session: aiohttp.ClientSession, start: bytes) -> None:
    taken = 0

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await read_head(reader)
        writer.write(start)
        with suppress(ConnectionError):
            while taken < 100 * MAX_HEAD:
                writer.write(b"x" * 65536)
                await writer.drain()
                taken += 65536

    async with upstream(answers) as port:
        try:
            await check(session, proxy, headers(port), 502, "headers are larger")
        except aiohttp.ClientPayloadError:
            assert b"chunked" in start  # the answer had begun
    assert taken < 100 * MAX_HEAD


async def test_paused_sandbox_that_resumes_is_reached(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    proxy.sandboxes.resumable[OTHER] = Endpoint("127.0.0.1", None, None)
    sent = headers(app_port, **{"E2b-Sandbox-Id": OTHER})
    async with session.get(proxy.url, headers=sent) as response:
        assert response.status == 200


async def test_traffic_token(proxy: Proxy, app_port: int, session: aiohttp.ClientSession) -> None:
    proxy.sandboxes.live[ID] = Endpoint("127.0.0.1", "envd", "secret")
    for sent, status in (({}, 403), ({"e2b-traffic-access-token": "wrong"}, 403)):
        await check(session, proxy, headers(app_port) | sent, status, "e2b-traffic-access-token")
    sent = headers(app_port, **{"e2b-traffic-access-token": "secret"})
    async with session.get(proxy.url, headers=sent) as response:
        assert response.status == 200
        assert "secret" not in await response.text()


async def test_who_lacks_the_token_wakes_nothing(
    proxy: Proxy, app_port: int, session: aiohttp.ClientSession
) -> None:
    proxy.sandboxes.resumable[OTHER] = Endpoint("127.0.0.1", "envd", "secret")
    sent = headers(app_port, **{"E2b-Sandbox-Id": OTHER})
    await check(session, proxy, sent, 403, "e2b-traffic-access-token")
    assert not proxy.sandboxes.resumed
    async with session.get(proxy.url, headers=sent | {"e2b-traffic-access-token": "secret"}) as response:
        assert response.status == 200
    assert proxy.sandboxes.resumed == [OTHER]


async def test_internal_routes_of_envd_are_hidden(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    async with session.post(proxy.url + "/init", headers=headers(ENVD_PORT)) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "second",
    [
        b"HTTP/1.1 500 X\r\nContent-Length: 3\r\nX: no\r\n\r\nno!",
        b"HTTP/1.1 100 X\r\n\r\n",
        b"HTTP/1.1 2",
        b"nix",
    ],
)
async def test_a_second_answer_changes_nothing(
    proxy: Proxy, session: aiohttp.ClientSession, second: bytes
) -> None:
    served = 0

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await read_head(reader)
        served += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: yes\r\n\r\nok" + second)
        await writer.drain()
        await reader.read()

    async with upstream(answers) as port:
        for count in (1, 2):  # the next request has a connection of its own
            async with session.get(proxy.url, headers=headers(port)) as response:
                assert (response.status, response.headers["X"]) == (200, "yes")
                assert await response.read() == b"ok"
            assert served == count


async def test_other_transfer_codings_are_refused(proxy: Proxy, session: aiohttp.ClientSession) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    async with upstream(answers) as port:
        await check(session, proxy, headers(port), 502, "gzip")
        async with raw_client(proxy.port) as (reader, writer):
            sent = headers(port, **{"Transfer-Encoding": "gzip, chunked"})
            lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            writer.write(f"POST / HTTP/1.1\r\nConnection: close\r\n{lines}\r\n0\r\n\r\n".encode())
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"gzip" in answer


async def test_hosts_that_contradict_each_other_are_refused(proxy: Proxy) -> None:
    async with raw_client(proxy.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n")
        assert b"given twice" in await reader.read()
