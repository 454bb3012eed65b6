"""What runs in a VM of the fake runtime: a small HTTP server that answers like the agent.

It keeps values in two dicts, its memory and its disk. Like a real guest it answers nothing while frozen, and
knows the identity that `/init` gave it; a value for the disk is in memory until `/sync`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from aenv.guest import ENVD_PORT
from aenv.runtimes.fake_shell import FakeShell

PAGE = 100
"""Entries of the journal in one answer."""

METRICS = {
    "ts": 0,
    "cpu_count": 2,
    "cpu_used_pct": 12.5,
    "mem_total": 512 << 20,
    "mem_used": 64 << 20,
    "mem_cache": 32 << 20,
    "disk_total": 10 << 30,
    "disk_used": 1 << 30,
}


class FakeGuest:
    """What runs in a fake VM. `memory` and `disk` are kept by captures."""

    def __init__(self, memory: dict[str, Any], disk: dict[str, Any]) -> None:
        self.memory = memory
        self.disk = disk
        self.boot_id = memory.setdefault("boot_id", str(uuid.uuid4()))
        self._unwritten: dict[str, Any] = memory.setdefault("unwritten", {})
        self._journal: list[dict[str, Any]] = memory.setdefault("journal", [])
        self.metrics: dict[str, Any] = dict(METRICS)
        """What `/metrics` answers."""
        self.on_sync: Callable[[], None] = lambda: None
        """Called before anything is written to the disk."""
        self.identity: dict[str, Any] = {}
        self.clock = 0.0
        """When it was last told the time without an identity."""
        self.responsive = asyncio.Event()
        self.responsive.set()
        self._running = asyncio.Event()
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/init", self._init)
        app.router.add_post("/freeze", self._freeze)
        app.router.add_post("/sync", self._sync)
        app.router.add_post("/unfreeze", self._unfreeze)
        app.router.add_post("/warm", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/logs", self._logs)
        app.router.add_get("/memory/{key}", self._read)
        app.router.add_put("/memory/{key}", self._write)
        app.router.add_get("/disk/{key}", self._read_disk)
        app.router.add_put("/disk/{key}", self._write_disk)
        self.on_command: Callable[[str], None] = lambda _command: None
        """Called with each command line that is run."""
        self._shell = FakeShell(
            app,
            lambda: self.disk | self._unwritten,
            self._unwritten.__setitem__,
            lambda command: self.on_command(command),  # noqa: PLW0108 (it is set later)
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)  # 0 is for ever

    async def start(self, address: str) -> None:
        """Listen; answers come once `run` was called."""
        await self._runner.setup()
        await web.TCPSite(self._runner, address, ENVD_PORT).start()

    async def close(self) -> None:
        """Stop listening and cut connections."""
        self._shell.closed.set()
        await self._runner.cleanup()

    def run(self, running: bool) -> None:
        """Let requests be answered, or hold them."""
        if running:
            self._running.set()
        else:
            self._running.clear()

    async def _turn(self) -> None:
        await self._running.wait()
        await self.responsive.wait()

    async def _health(self, _request: web.Request) -> web.Response:
        await self._turn()
        return web.Response(status=204)

    async def _init(self, request: web.Request) -> web.Response:
        await self._turn()
        token = self.memory.get("token")
        if token and not self.memory.get("frozen") and request.headers.get("X-Access-Token") != token:
            return web.Response(status=401)
        self.identity = self._shell.identity = await request.json()
        self.memory["token"] = self.identity.get("accessToken")
        if self.identity["sandboxId"] != self.memory.get("sandbox"):
            self.memory["sandbox"] = self.identity["sandboxId"]
            self._journal.clear()
        self.memory["frozen"] = False
        return web.Response(status=204)

    async def _freeze(self, _request: web.Request) -> web.Response:
        await self._turn()
        self.memory["frozen"] = True
        return web.Response(status=204)

    async def _unfreeze(self, request: web.Request) -> web.Response:
        await self._turn()
        if request.can_read_body:
            self.clock = (await request.json())["timestamp"] / 1e9
        self.memory["frozen"] = False
        return web.Response(status=204)

    async def _sync(self, _request: web.Request) -> web.Response:
        await self._turn()
        self.memory["frozen"] = True
        self.on_sync()
        await self._turn()
        self.disk.update(self._unwritten)
        self._unwritten.clear()
        return web.Response(status=204)

    def note(self, message: str, level: str = "info", logger: str = "process", /, **fields: str) -> None:
        """Add an entry to the guest's journal."""
        self.memory["noted"] = self.memory.get("noted", 0) + 1
        entry = {"sequence": self.memory["noted"], "time": datetime.now(UTC).isoformat(), "fields": fields}
        self._journal.append({**entry, "level": level, "logger": logger, "message": message})

    async def _metrics(self, _request: web.Request) -> web.Response:
        await self._turn()
        return web.json_response(self.metrics)

    async def _logs(self, request: web.Request) -> web.Response:
        await self._turn()
        after = int(request.query["after"]) if request.query["journal"] == self.boot_id else 0
        left = [entry for entry in self._journal if entry["sequence"] > after]
        page = left[:PAGE]
        return web.json_response({"journal": self.boot_id, "entries": page, "more": len(left) > PAGE})

    async def _read(self, request: web.Request) -> web.Response:
        await self._turn()
        return web.json_response(self.memory.get(request.match_info["key"]))

    async def _write(self, request: web.Request) -> web.Response:
        await self._turn()
        self.memory[request.match_info["key"]] = await request.json()
        return web.Response(status=204)

    async def _read_disk(self, request: web.Request) -> web.Response:
        await self._turn()
        return web.json_response((self.disk | self._unwritten).get(request.match_info["key"]))

    async def _write_disk(self, request: web.Request) -> web.Response:
        await self._turn()
        self._unwritten[request.match_info["key"]] = await request.json()
        return web.Response(status=204)
