"""A whole server on the fake runtime, and a client that says what it got."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from aenv.api.server import Node, serve
from aenv.node import Node as RealNode
from aenv.settings import Settings


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: Any
    """The JSON value; None without a body."""


@dataclass(frozen=True)
class Server:
    """A running server and a session to talk to it."""

    url: str
    key: str
    settings: Settings
    session: aiohttp.ClientSession

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Answer:
        """Send a request with the API key; the path goes out as it is written."""
        sent = {"X-API-KEY": self.key} | dict(headers or {})
        if body is not None:
            options["json"] = body
        url = URL(self.url + path, encoded=True)
        async with self.session.request(method, url, headers=sent, **options) as response:
            raw = await response.read()
            body = await response.json() if raw else None
            return Answer(response.status, response.headers, body)

    async def create(self, **fields: Any) -> str:
        """The id of a new sandbox."""
        answer = await self.request("POST", "/v2/sandboxes", {"templateID": "base"} | fields)
        assert answer.status == 201, answer
        sandbox_id = answer.body["sandboxID"]
        assert isinstance(sandbox_id, str)
        return sandbox_id


def fake_settings(home: Path, **changes: Any) -> Settings:
    """Settings for a server that needs nothing of the host."""
    values: dict[str, Any] = {
        "home": home,
        "port": 0,
        "runtime": "fake",
        "hot_vms": 1,
        "bare_vms": 1,
    } | changes
    return Settings(**values)


@asynccontextmanager
async def running(settings: Settings, node: Node | None = None) -> AsyncIterator[Server]:
    """A server for the time of the block."""
    stop = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(serve(settings, node or RealNode(settings), stop, ready=url.set_result))
    try:
        waited: set[asyncio.Future[Any]] = {work, url}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        key = (await asyncio.to_thread(settings.api_key_file.read_text)).strip()
        async with aiohttp.ClientSession() as session:
            yield Server(await url, key, settings, session)
    finally:
        stop.set()
        await work


async def run_program(server: Server, *command: str | Path) -> None:
    """Run a user's program with access to the server; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    access = {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key}
    process = await asyncio.create_subprocess_exec(
        *command, env=kept | access, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()


def is_error(answer: Answer, status: int, *words: str) -> bool:
    """Whether the answer is an error of the contract's form whose message has all `words`."""
    return (
        answer.status == status
        and answer.body["code"] == status
        and all(word in answer.body["message"] for word in words)
    )
