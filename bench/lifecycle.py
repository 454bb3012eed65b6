"""How long create, pause, resume, snapshot and fork take, as a client sees it.

    .venv/bin/python bench/lifecycle.py [--runs 20] [--json] [--home DIR]

Starts servers of its own on a home folder (AENV_HOME or /var/lib/aenv) that must not be in use. A run
waits until the server is quiet again before the next, so these are the times of single requests, not of
a loaded server. Rows as in `docs/benchmarks.md`: `running`, `frozen` and the like are told by the server in
`Server-Timing`; every other end is the moment at which this client has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from aenv.guest.client import EnvdClient

QUIET_SECONDS = 3.0
"""Pause between runs: spare VMs are made in this time."""


@dataclass
class Row:
    """One operation, timed to one end, milliseconds."""

    name: str
    end: str
    target: float | None = None
    times: list[float] = field(default_factory=list)
    n: int = 0

    def summary(self) -> dict[str, Any]:
        """The row in the form all benchmarks share."""
        cuts = statistics.quantiles(self.times, n=100, method="inclusive") if len(self.times) > 1 else None
        return {
            "name": self.name,
            "end": self.end,
            "n": self.n,
            "ok": len(self.times),
            "p50": round(cuts[49], 1) if cuts else None,
            "p95": round(cuts[94], 1) if cuts else None,
            "p99": round(cuts[98], 1) if cuts else None,
            "unit": "ms",
            "reference": self.target,
            "ratio": round(cuts[49] / self.target, 2) if cuts and self.target else None,
        }


class Client:
    """The few requests that are timed, sent as the SDKs send them."""

    def __init__(self, url: str, key: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._key = key
        self._session = session
        self.timings: dict[str, float] = {}

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One control-plane request; leaves what the server told of its stages in `timings`."""
        headers = {"X-API-KEY": self._key}
        async with self._session.request(method, self._url + path, json=body, headers=headers) as response:
            text = await response.text()
            if response.status >= 400:
                raise RuntimeError(f"{method} {path}: {response.status} {text}")
            self.timings = {}
            for stage in filter(None, response.headers.get("Server-Timing", "").split(", ")):
                name, _, duration = stage.partition(";dur=")
                self.timings[name] = float(duration)
            return json.loads(text) if text else None

    async def command(self, sandbox: dict[str, Any]) -> None:
        """A first command, as `commands.run("true")` of the SDKs sends it."""
        headers = {"E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": "49983"}
        client = EnvdClient(
            self._url,
            session=self._session,
            token=sandbox.get("envdAccessToken"),
            headers=headers,
            user="user",
        )
        result = await client.processes.run("echo ready")
        if result.exit_code != 0 or result.stdout != b"ready\n":
            raise RuntimeError(f"the command answered {result}")


@asynccontextmanager
async def server(home: Path, port: int, **settings: int) -> AsyncIterator[Client]:
    """A server with these settings, until the block ends."""
    environment = {**os.environ, **{f"AENV_{name.upper()}": str(value) for name, value in settings.items()}}
    command = [str(Path(sys.executable).parent / "aenv"), "server", "--home", str(home), "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise SystemExit("the server didn't start; it said why above")
        key = (home / "secrets" / "api-key").read_text().strip()
        async with aiohttp.ClientSession() as session:
            await asyncio.sleep(2 * QUIET_SECONDS)
            yield Client(f"http://127.0.0.1:{port}", key, session)
    finally:
        process.terminate()
        await process.wait()


class Clock:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def ms(self) -> float:
        """Now."""
        return (time.perf_counter() - self._started) * 1000


async def one_life(client: Client, rows: dict[str, Row], kind: str) -> None:
    """Create, command, pause, resume, command, snapshot, fork of 4, a command in each, kill."""

    def note(name: str, end: str, value: float, target: float | None = None) -> None:
        row = rows.setdefault(f"{name}/{end}", Row(name, end, target))
        row.times.append(value)

    clock = Clock()
    sandbox = await client.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300})
    note(f"create_{kind}", "answering", clock.ms())
    note(f"create_{kind}", "running", client.timings["running"])
    await client.command(sandbox)
    note(f"create_{kind}", "usable", clock.ms(), 400 if kind == "hot" else None)
    path = f"/sandboxes/{sandbox['sandboxID']}"

    clock = Clock()
    await client.call("POST", f"{path}/pause", {})
    note("pause", "paused", clock.ms(), 150)
    await asyncio.sleep(QUIET_SECONDS)
    resumed = "resume_stopped" if kind == "hot" else "resume_bare"
    clock = Clock()
    sandbox = await client.call("POST", f"/v2{path}/connect", {"timeout": 300})
    note(resumed, "answering", clock.ms())
    note(resumed, "running", client.timings["running"], 100)
    await client.command(sandbox)
    note(resumed, "usable", clock.ms(), 800)

    clock = Clock()
    await client.call("POST", f"{path}/snapshots", {})
    note("snapshot", "answered", clock.ms())
    note("snapshot", "frozen", client.timings["frozen"], 60)
    await asyncio.sleep(QUIET_SECONDS)

    clock = Clock()
    results = await client.call("POST", f"{path}/fork", {"count": 4})
    note("fork4", "answering", clock.ms())
    note("fork4", "frozen", client.timings["frozen"], 60)
    children = [result["sandbox"] for result in results]
    await asyncio.gather(*(client.command(child) for child in children))
    note("fork4", "usable", clock.ms(), 3000)
    clock = Clock()
    for each in [sandbox, *children]:
        await client.call("DELETE", f"/sandboxes/{each['sandboxID']}")
    note("kill", "gone", clock.ms() / 5)


async def repeat(runs: int, rows: dict[str, Row], life: Callable[[], Awaitable[None]]) -> None:
    """`life` so many times; a failure counts in `n` and shows its reason."""
    for _ in range(runs):
        known = set(rows)
        try:
            await life()
        except (RuntimeError, aiohttp.ClientError, KeyError) as error:
            print(f"a run failed: {error!r}", file=sys.stderr)
        for name in known | set(rows):
            rows[name].n += 1
        await asyncio.sleep(QUIET_SECONDS)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "runtime": "qemu",
        "version": qemu.stdout.splitlines()[0] if qemu.stdout else None,
    }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both kinds: with the pools, and with no hot and no stopped VMs."""
    rows: dict[str, Row] = {}
    for kind, settings in (
        ("hot", {"hot_vms": 2}),
        ("bare", {"hot_vms": 0, "stopped_vms": 0, "bare_vms": 4}),
    ):
        async with server(arguments.home, arguments.port, **settings) as client:
            part: dict[str, Row] = {}
            await repeat(arguments.runs, part, lambda c=client, p=part, k=kind: one_life(c, p, k))  # type: ignore[misc]
        for row in part.values():
            if kind == "bare" and f"{row.name}/{row.end}" in rows:
                row.name = f"{row.name}_bare"
            rows[f"{row.name}/{row.end}"] = row
    return {"machine": machine(), "rows": [row.summary() for row in rows.values()]}


def show(result: dict[str, Any]) -> None:
    """The rows as a table."""
    table = Table("operation", "until", "ok/n", "p50 ms", "p95 ms", "target", title=str(result["machine"]))
    for row in result["rows"]:
        counts = f"{row['ok']}/{row['n']}"
        table.add_row(
            row["name"], row["end"], counts, str(row["p50"]), str(row["p95"]), str(row["reference"] or "")
        )
    Console(width=140).print(table)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="lives of a sandbox per kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("AENV_HOME", "/var/lib/aenv")))
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
