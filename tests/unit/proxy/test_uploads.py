"""Bodies that stand still, and those that only take their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from aenv.guest.client import EnvdClient
from tests.unit.guest.support import envd_binary, envd_url
from tests.unit.proxy.support import ID, eventually, headers, raw_client, read_head, running_proxy, upstream

__all__ = ["envd_binary", "envd_url"]


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("body", [b"", b"5\r\nhello\r\n"])
async def test_client_whose_body_stands_still_is_told_so_and_the_sandbox_too(
    framing: str, body: bytes
) -> None:
    ended = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            await read_head(reader)
            await reader.read()
        finally:
            ended.set()

    async with (
        running_proxy(max_upload_idle=0.3) as proxy,
        upstream(waits) as port,
        raw_client(proxy.port) as (reader, writer),
        asyncio.timeout(20),
    ):
        sent = f"POST / HTTP/1.1\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n{framing}\r\n\r\n"
        writer.write(sent.encode() + body)
        answer = await reader.read()  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"AENV_MAX_UPLOAD_IDLE" in answer
        await ended.wait()
        assert proxy.links() == 0


async def test_a_body_that_goes_on_slowly_or_beside_its_answer_is_carried(
    session: aiohttp.ClientSession,
) -> None:
    """A client is idle only while the sandbox waits for it."""
    idle = 1.0

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await reader.readuntil(b"2\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b" and done")

    async def body() -> AsyncIterator[bytes]:
        for part in range(3):
            await asyncio.sleep(idle / 2)
            yield b"%d\r\n" % part
        await asyncio.sleep(2 * idle)
        yield b"more"

    async with (
        running_proxy(max_upload_idle=idle) as proxy,
        upstream(answers) as port,
        session.post(proxy.url, data=body(), headers=headers(port)) as response,
    ):
        assert await response.read() == b"begun and done"


@pytest.mark.parametrize("form", [False, True])
async def test_an_upload_that_stands_still_leaves_nothing_in_the_guest(
    envd_url: str, session: aiohttp.ClientSession, tmp_path: Path, form: bool
) -> None:
    target = tmp_path / "upload"

    async def body() -> AsyncIterator[bytes]:
        if form:
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        yield bytes(1 << 20)
        await eventually(target.exists)
        await asyncio.Event().wait()

    kind = "multipart/form-data; boundary=x" if form else "application/octet-stream"
    async with EnvdClient(envd_url) as client:
        await client.wait_healthy(10)
    port = URL(envd_url).port
    assert port is not None
    async with (
        asyncio.timeout(60),
        running_proxy(max_upload_idle=1.0) as proxy,
        session.post(
            f"{proxy.url}/files?path={target}&username=root",
            data=body(),
            headers=headers(port, **{"Content-Type": kind}),
        ) as response,
    ):
        assert response.status == 408
        assert "AENV_MAX_UPLOAD_IDLE" in (await response.json())["message"]
        await eventually(lambda: not target.exists())
