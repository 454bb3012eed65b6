"""What a sandbox costs while nobody uses it: memory of idle children, and what paused ones leave behind."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.batch import Life
from aenv.bench.home import Home, private_mib
from aenv.bench.reference import run_engine
from aenv.bench.rows import Report, Row
from aenv.bench.server import Clock, Server, first_command, running_server
from aenv.errors import RuntimeFailure

SETTLE_SECONDS = 2.0
"""Until a child is idle."""
_LISTS = 50
_AT_ONCE = 2
_COMPARED = 4
"""VMs by hand: so many that what they share doesn't count as one's own."""


@dataclass(frozen=True)
class Size:
    """How many paused sandboxes there are, and how many of them one list shows."""

    paused: int = 200
    page: int = 100


async def measure(report: Report, home: Path, runs: int, size: Size | None = None) -> None:
    """`runs` children, then many paused sandboxes, none of which is kept in memory."""
    settings = {"hot_vms": 0, "bare_vms": 0, "stopped_vms": 0}
    async with running_server(home, settings=settings) as server:
        await _children(report, server, Home(home), runs)
        await measure_paused(report, server, Home(home), size or Size())


async def _children(report: Report, server: Server, home: Home, runs: int) -> None:
    """Forks of one parent that ran a command, and as many VMs by hand as share what can be shared."""
    fresh = report.row("child_fresh", unit="MiB", target="≤ 30")
    used = report.row("child_bash", unit="MiB", target="≤ 50")
    fit = report.row("fit", unit="sandboxes")
    lives: list[Life] = []
    try:
        lives.append(Life(server, await server.create()))
        await _weigh(report, (fresh, used), home, runs, lives)
    finally:
        await _end(report, server, lives)
    if used.values:
        fit.n += 1
        fit.add(available_mib() // statistics.median(used.values))
    with report.attempt("the bare engine"):
        steps = ["idle", "weigh", "command", "weigh"]
        for vm in await run_engine(home.folder, home.template_capture(), steps, count=_COMPARED):
            fresh.reference.append(vm["weigh"][0])
            used.reference.append(vm["weigh"][1])


async def _weigh(report: Report, rows: tuple[Row, Row], home: Home, runs: int, lives: list[Life]) -> None:
    """Fill the rows of children, before and after a command; `lives` has their parent, and gets them."""
    fresh, used = rows
    parent = lives[0]
    server = parent.server
    await first_command(parent.guest, Clock())
    while len(lives) <= runs:
        count = min(runs - len(lives) + 1, 16)
        results = await server.call("POST", f"/sandboxes/{parent.id}/fork", {"count": count})
        lives += [Life(server, result.get("sandbox", {})) for result in results]
    await asyncio.sleep(SETTLE_SECONDS)
    children = lives[1:]
    for child in children:
        with report.attempt("weighing", fresh):
            fresh.add(private_mib(home.vmm_of(child.id)))
    for child in children:
        with report.attempt("a command", used):
            await first_command(child.guest, Clock())
            await asyncio.sleep(SETTLE_SECONDS)
            used.add(private_mib(home.vmm_of(child.id)))


async def _end(report: Report, server: Server, lives: Sequence[Life]) -> None:
    for life in lives:
        if life.sandbox:
            with report.attempt("cleaning up"):
                await server.call("DELETE", f"/sandboxes/{life.id}")


def available_mib() -> float:
    """Memory that the kernel could give to processes."""
    line = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
    return int(line.split(maxsplit=1)[0]) / 1024


async def measure_paused(report: Report, server: Server, home: Home, size: Size) -> None:
    """Make them, look at what they leave on the host and how quickly they are listed, and delete them."""
    made = report.row("paused", unit="MiB of disk")
    vmms = report.row("paused_vmms", unit="processes", target="≤ 0")
    lists = report.row("list", target="≤ 10")
    before, others = home.captures_mib(), await _listed(server, size.page)
    free = asyncio.Semaphore(_AT_ONCE)
    lives: list[Life] = []

    async def make(_number: int) -> None:
        async with free:
            with report.attempt("a paused sandbox", made):
                life = Life(server, await server.create())
                lives.append(life)
                await server.call("POST", f"/sandboxes/{life.id}/pause", {})
                made.ok += 1

    try:
        await asyncio.gather(*(make(number) for number in range(size.paused)))
        await asyncio.sleep(SETTLE_SECONDS)
        if made.ok:
            made.values.append((home.captures_mib() - before) / made.ok)
        with report.attempt("counting VMMs", vmms):
            vmms.add(home.vmms())
        for _ in range(_LISTS):
            with report.attempt("list", lists):
                clock = Clock()
                found = await _listed(server, size.page)
                took = clock.ms()
                if found != min(others + made.ok, size.page):
                    raise RuntimeFailure(f"{found} paused sandboxes are listed of {others + made.ok}")
                lists.add(took)
    finally:
        await _end(report, server, lives)


async def _listed(server: Server, page: int) -> int:
    """How many are on the first page of the list of paused sandboxes."""
    return len(await server.call("GET", f"/v2/sandboxes?state=paused&limit={page}"))
