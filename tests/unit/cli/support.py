"""A control plane small enough to read, in front of a real envd: what the CLI talks to in these tests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEY = "e2b_" + "0" * 40
SOURCE = Path(__file__).parents[3] / "src"
TOKEN = "token-of-envd"
_PER_HOP = {"Host", "Transfer-Encoding"}


def log_entry(when: float, message: str, level: str = "info", logger: str = "process") -> dict[str, Any]:
    """A log entry as the API gives it; `when` in seconds since the epoch."""
    stamp = datetime.fromtimestamp(when, UTC).isoformat()
    return {"timestamp": stamp, "level": level, "message": message, "fields": {"logger": logger}}


@dataclass
class ControlPlane:
    """Sandboxes that all are the envd at `envd_url`. `seen` has the control requests in order."""

    envd_url: str
    url: str = ""
    states: dict[str, str] = field(default_factory=lambda: {"i1": "running", "i2": "paused"})
    seen: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Breaks every data connection that is open."""

    def application(self) -> web.Application:
        """The server to run."""
        app = web.Application(client_max_size=1 << 30, middlewares=[self._front])
        app.add_routes(
            [
                web.get("/v2/sandboxes", self._list),
                web.post("/v2/sandboxes", self._create),
                web.post("/v2/sandboxes/{id}/connect", self._connect),
                web.get("/v2/templates", self._nothing),
                web.get("/snapshots", self._nothing),
                web.delete("/templates/{id}", self._done),
                web.get("/sandboxes/{id}", self._info),
                web.get("/sandboxes/{id}/metrics", self._metrics),
                web.get("/v2/sandboxes/{id}/logs", self._logs),
                web.delete("/sandboxes/{id}", self._kill),
                web.post("/sandboxes/{id}/pause", self._pause),
                web.post("/sandboxes/{id}/fork", self._fork),
                web.post("/sandboxes/{id}/snapshots", self._snapshot),
                web.post("/sandboxes/{id}/rollback", self._done),
                web.post("/sandboxes/{id}/timeout", self._done),
                web.post("/sandboxes/{id}/refreshes", self._done),
            ]
        )
        return app

    @web.middleware
    async def _front(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass data requests on; note control requests and let in those with the key."""
        if "E2b-Sandbox-Id" in request.headers:
            return await self._pass(request)
        body = await request.read()
        self.seen.append((f"{request.method} {request.raw_path}", json.loads(body) if body else None))
        self.headers.append(request.headers)
        if request.headers.get("X-API-KEY") != KEY:
            return refuse(401, "wrong or missing API key")
        name = request.match_info.get("id")
        if "/sandboxes/" in request.path and name not in self.states:
            return refuse(404, f"sandbox '{name}' was not found")
        return await handler(request)

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response([self._detail(name) for name in sorted(self.states)])

    async def _nothing(self, _request: web.Request) -> web.Response:
        return web.json_response([])

    async def _done(self, _request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _create(self, request: web.Request) -> web.Response:
        template = (await request.json())["templateID"]
        if template != "base":
            return refuse(404, f"template '{template}' was not found")
        self.states["i9"] = "running"
        return web.json_response(self._answer("i9"), status=201)

    async def _connect(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self.states[name] = "running"
        return web.json_response(self._answer(name), status=201)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self._detail(request.match_info["id"]))

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.json_response(self.metrics)

    async def _logs(self, request: web.Request) -> web.Response:
        """Every entry from the cursor on; one more with each question."""
        cursor = int(request.query["cursor"]) / 1000
        self.logs.append(log_entry(1767225600.0 + len(self.logs), f"entry {len(self.logs)}"))
        found = [e for e in self.logs if datetime.fromisoformat(e["timestamp"]).timestamp() >= cursor]
        return web.json_response({"logs": found})

    async def _kill(self, request: web.Request) -> web.Response:
        del self.states[request.match_info["id"]]
        return web.Response(status=204)

    async def _pause(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if self.states[name] == "paused":
            return refuse(409, f"sandbox '{name}' is paused already")
        self.states[name] = "paused"
        return web.Response(status=204)

    async def _fork(self, request: web.Request) -> web.Response:
        """There is room for two."""
        name, count = request.match_info["id"], (await request.json())["count"]
        children: list[Any] = [{"sandbox": self._answer(f"{name}c{n}")} for n in range(min(count, 2))]
        children += [{"error": {"code": 503, "message": "no room"}}] * (count - len(children))
        return web.json_response(children, status=201)

    async def _snapshot(self, _request: web.Request) -> web.Response:
        return web.json_response({"snapshotID": "s1:default", "names": ["ready"]}, status=201)

    def _answer(self, name: str) -> dict[str, Any]:
        return {
            "sandboxID": name,
            "templateID": "t1",
            "alias": "base",
            "clientID": "aenv",
            "envdVersion": "0.6.13",
            "envdAccessToken": TOKEN,
        }

    def _detail(self, name: str) -> dict[str, Any]:
        paused = {"pauseReason": "the host's disk was full"} if self.states[name] == "paused" else {}
        return self._answer(name) | {
            **paused,
            "state": self.states[name],
            "startedAt": "2026-01-02T03:04:05Z",
            "endAt": "2126-01-02T03:04:05Z",
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 10240,
            "metadata": {"team": "search"},
        }

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        """Hand a data request on to envd, streaming both ways."""
        name = request.headers["E2b-Sandbox-Id"]
        if self.states.get(name) != "running" or request.headers.get("X-Access-Token") != TOKEN:
            return web.json_response({"code": 502, "message": "The sandbox was not found"}, status=502)
        headers = {key: value for key, value in request.headers.items() if key not in _PER_HOP}
        body = request.content if request.can_read_body else None
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self.envd_url + request.raw_path, headers=headers, data=body
            ) as upstream,
        ):
            response = web.StreamResponse(status=upstream.status, headers=upstream.headers)
            await response.prepare(request)
            cut = asyncio.create_task(self.cut.wait())
            try:
                await self._copy(upstream, response, cut)
            finally:
                cut.cancel()
            if cut.done() and request.transport is not None:
                request.transport.abort()
            return response

    async def _copy(
        self, upstream: aiohttp.ClientResponse, response: web.StreamResponse, cut: asyncio.Task[Any]
    ) -> None:
        while True:
            chunk = asyncio.ensure_future(upstream.content.readany())
            try:
                await asyncio.wait({chunk, cut}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not chunk.done():
                    chunk.cancel()
            if cut.done() or not chunk.result():
                return
            await response.write(chunk.result())


def refuse(status: int, message: str) -> web.Response:
    """An error in the API's form."""
    return web.json_response({"code": status, "message": message}, status=status)


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: bytes
    err: str


@dataclass(frozen=True)
class Cli:
    """The command `aenv` with an environment of its own."""

    url: str
    home: Path
    key: str = KEY

    @property
    def environ(self) -> dict[str, str]:
        """What the command sees: no settings but these."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        kept |= {"HOME": str(self.home), "PYTHONPATH": str(SOURCE), "AENV_HOME": str(self.home / "aenv")}
        return kept | {"E2B_API_URL": self.url, "E2B_API_KEY": self.key, "TERM": "xterm", "COLUMNS": "100"}

    async def start(self, *arguments: str, **options: Any) -> asyncio.subprocess.Process:
        """Start it; standard input is empty unless said otherwise."""
        pipe = asyncio.subprocess.PIPE
        chosen = {"stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "env": self.environ}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aenv.cli", *arguments, **{**chosen, **options}
        )

    async def __call__(self, *arguments: str, given: bytes | None = None) -> Outcome:
        """Run it to its end, within a minute."""
        pipe = asyncio.subprocess.PIPE
        process = await self.start(*arguments, **({} if given is None else {"stdin": pipe}))
        async with asyncio.timeout(60):
            out, err = await process.communicate(given)
        return Outcome(process.returncode or 0, out, err.decode())
