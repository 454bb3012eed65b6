"""How long create, pause, resume, snapshot and fork take, as a client sees it.

A run waits until the server is quiet again before the next, so these are the times of single requests, not
of a loaded server. `running` and `frozen` are told by the server in `Server-Timing`; every other end is the
moment at which this client has its answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aenv.bench.rows import Report, Row
from aenv.bench.server import Clock, Server, running_server
from aenv.errors import RuntimeFailure

QUIET_SECONDS = 3.0
"""Pause between runs: spare VMs are made in this time."""

_KINDS: dict[str, dict[str, int]] = {
    "hot": {"hot_vms": 2},
    "bare": {"hot_vms": 0, "stopped_vms": 0, "bare_vms": 4},
}
"""With the pools, and with no hot and no stopped VMs."""

_ROWS = {
    ("create", "answering"): "",
    ("create", "running"): "",
    ("create", "usable"): "≤ 400",
    ("pause", "paused"): "≤ 150",
    ("resume", "answering"): "",
    ("resume", "running"): "≤ 100",
    ("resume", "usable"): "≤ 800",
    ("snapshot", "answered"): "",
    ("snapshot", "frozen"): "≤ 60",
    ("fork4", "answering"): "",
    ("fork4", "frozen"): "≤ 60",
    ("fork4", "usable"): "≤ 3000",
    ("kill", "gone"): "",
}
"""Operation and end → target for the p50, ms. That of a create is for hot VMs."""


class _Life:
    """One sandbox after the other is led through everything, and timed."""

    def __init__(self, server: Server, rows: dict[tuple[str, str], Row]) -> None:
        self._server = server
        self._rows = rows
        self._clock = Clock()

    def _note(self, name: str, end: str, value: float | None = None) -> None:
        self._rows[name, end].add(self._clock.ms() if value is None else value)

    async def _command(self, sandbox: dict[str, Any]) -> None:
        """A first command, as `commands.run` of the SDKs sends it."""
        result = await self._server.guest(sandbox).processes.run("echo ready")
        if result.exit_code != 0 or result.stdout != b"ready\n":
            raise RuntimeFailure(f"the command answered {result}")

    async def run(self) -> None:
        """Create, command, pause, resume, command, snapshot, fork of 4, a command in each, kill."""
        call = self._server.call
        self._clock = Clock()
        sandbox = await call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300})
        path = f"/sandboxes/{sandbox['sandboxID']}"
        everything = [sandbox]
        try:
            await self._started("create", sandbox)
            self._clock = Clock()
            await call("POST", f"{path}/pause", {})
            self._note("pause", "paused")
            await asyncio.sleep(QUIET_SECONDS)
            self._clock = Clock()
            await self._started("resume", await call("POST", f"/v2{path}/connect", {"timeout": 300}))
            await self._snapshot(path)
            await asyncio.sleep(QUIET_SECONDS)
            everything += await self._fork(path)
        except BaseException:
            for each in everything:
                await call("DELETE", f"/sandboxes/{each['sandboxID']}")
            raise
        self._clock = Clock()
        for each in everything:
            await call("DELETE", f"/sandboxes/{each['sandboxID']}")
        self._note("kill", "gone", self._clock.ms() / len(everything))

    async def _started(self, name: str, sandbox: dict[str, Any]) -> None:
        self._note(name, "answering")
        self._note(name, "running", self._server.timings["running"])
        await self._command(sandbox)
        self._note(name, "usable")

    async def _snapshot(self, path: str) -> None:
        self._clock = Clock()
        await self._server.call("POST", f"{path}/snapshots", {})
        self._note("snapshot", "answered")
        self._note("snapshot", "frozen", self._server.timings["frozen"])

    async def _fork(self, path: str) -> list[dict[str, Any]]:
        self._clock = Clock()
        results = await self._server.call("POST", f"{path}/fork", {"count": 4})
        self._note("fork4", "answering")
        self._note("fork4", "frozen", self._server.timings["frozen"])
        children = [result["sandbox"] for result in results if "sandbox" in result]
        if len(children) != len(results):
            raise RuntimeFailure(f"not every child started: {results}")
        await asyncio.gather(*(self._command(child) for child in children))
        self._note("fork4", "usable")
        return children


def _name(name: str, kind: str) -> str:
    """The row's name in JSON: which spare VM a start took is part of it."""
    if name == "create":
        return f"create_{kind}"
    if name == "resume":
        return "resume_stopped" if kind == "hot" else "resume_bare"
    return name if kind == "hot" else f"{name}_bare"


async def measure(report: Report, home: Path, runs: int) -> None:
    """`runs` lives of each kind."""
    for kind, settings in _KINDS.items():
        rows = {
            (name, end): report.row(
                _name(name, kind), end, target="" if (name, kind) == ("create", "bare") else target
            )
            for (name, end), target in _ROWS.items()
        }
        async with running_server(home, settings=settings) as server:
            life = _Life(server, rows)
            await asyncio.sleep(2 * QUIET_SECONDS)
            for index in range(runs):
                with report.attempt(f"run {index + 1}", *rows.values()):
                    await life.run()
                await asyncio.sleep(QUIET_SECONDS)
