"""A fork of 16: how long the parent stands still, and until all children run, answer and are usable."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aenv.bench.batch import ENDS, QUIET_SECONDS, Batch, Life, Place, start_rows
from aenv.bench.home import Home
from aenv.bench.pace import Pace
from aenv.bench.rows import Report
from aenv.bench.server import Clock, first_command, running_server
from aenv.errors import RuntimeFailure

CHILDREN = 16
NAME = f"fork{CHILDREN}"
_BARE_VMS = 2
"""Spare VMM processes, on both sides of the comparison: what a server has unless it is told otherwise."""


async def measure(report: Report, home: Path, pace: Pace) -> None:
    """Each fork has a parent of its own, that has run one command."""
    start_rows(report, NAME, ("≤ 1000", "", "≤ 15000"))
    report.row("freeze", target="≤ 60")
    report.row(f"{NAME}_seen")
    async with running_server(home, settings={"hot_vms": 1, "bare_vms": _BARE_VMS}) as server:
        for size in pace.batches():
            await asyncio.sleep(2 * QUIET_SECONDS)
            batch = Batch(Place(server, Home(home), report, pace), size)
            children: list[Life] = []
            try:
                await _forks(batch, children)
            finally:
                await batch.end(children)
            await _compare(batch)


async def _forks(batch: Batch, children: list[Life]) -> None:
    async def create(life: Life) -> None:
        life.sandbox = await batch.server.create()
        await first_command(life.guest, Clock())

    async def fork(life: Life) -> None:
        clock = Clock()
        path = f"/sandboxes/{life.id}/fork"
        results, told = await batch.server.timed_call("POST", path, {"count": CHILDREN})
        answering = clock.ms()
        started = [Life(batch.server, result["sandbox"]) for result in results if "sandbox" in result]
        children.extend(started)
        if len(started) != CHILDREN:
            raise RuntimeFailure(f"not every child started: {[r for r in results if 'sandbox' not in r]}")
        usable = max(await asyncio.gather(*(first_command(child.guest, clock) for child in started)))
        for end, value in zip(ENDS, (told["running"], answering, usable), strict=True):
            batch.row(NAME, end).add(value)
        batch.row("freeze").add(told["frozen"])

    await batch.each((), create)
    await batch.watch()
    await asyncio.sleep(QUIET_SECONDS)
    await batch.each((NAME, "freeze"), fork)
    await batch.note_seen(f"{NAME}_seen")


async def _compare(batch: Batch) -> None:
    compared: dict[tuple[str, str | None], tuple[str, str]] = {(NAME, end): ("fork", end) for end in ENDS}
    compared["freeze", None] = ("fork", "frozen")
    capture = batch.home.template_capture()
    await batch.engine(capture, ["restore", "fork"], compared, children=CHILDREN, ready=_BARE_VMS)
