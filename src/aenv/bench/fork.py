"""A fork of 16: how long the parent stands still, and until all children run, answer and are usable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aenv.bench import seen
from aenv.bench.batch import ENDS, QUIET_SECONDS, Batch, Life, Place, start_rows
from aenv.bench.home import Home
from aenv.bench.pace import Pace
from aenv.bench.rows import Report
from aenv.bench.server import Clock, first_command, running_server
from aenv.errors import RuntimeFailure

CHILDREN = 16
NAME = f"fork{CHILDREN}"
_SEEN = f"{NAME}_seen"
_BARE_VMS = 2
"""Spare VMM processes, on both sides of the comparison: what a server keeps while little is asked of it."""


async def measure(report: Report, home: Path, pace: Pace) -> None:
    """Each fork has a parent of its own, that has run one command."""
    make_rows(report)
    async with running_server(home, settings={"hot_vms": 1, "bare_vms": _BARE_VMS}) as server:
        for size in pace.batches():
            await asyncio.sleep(2 * QUIET_SECONDS)
            batch = Batch(Place(server, Home(home), report, pace), size)
            try:
                await _parents(batch)
                await timed(batch)
                await _seen(batch)
            finally:
                await batch.end()
            await _compare(batch)


def make_rows(report: Report) -> None:
    """The rows of a fork."""
    start_rows(report, NAME, ("≤ 1000", "", "≤ 15000"))
    report.row("freeze", target="≤ 60")
    report.row(_SEEN)


async def _parents(batch: Batch) -> None:
    async def create(life: Life) -> None:
        life.sandbox = await batch.server.create()
        await first_command(life.guest, Clock())

    await batch.each((), create)


async def timed(batch: Batch) -> None:
    """Fork each sandbox, and run a first command in every child."""

    async def fork(life: Life) -> None:
        clock = Clock()
        async with _fork(batch, life) as (children, told):
            answering = clock.ms()
            usable = max(await asyncio.gather(*(first_command(child.guest, clock) for child in children)))
            for end, value in zip(ENDS, (told["running"], answering, usable), strict=True):
                batch.row(NAME, end).add(value)
            batch.row("freeze").add(told["frozen"])

    await asyncio.sleep(QUIET_SECONDS)
    await batch.each((NAME, "freeze"), fork)


async def _seen(batch: Batch) -> None:
    """A fork of its own: the children inherit the loop that watches the clock, and it would slow them all."""

    async def fork(life: Life) -> None:
        async with _fork(batch, life):
            batch.row(_SEEN).add(await seen.longest(life.guest))

    await batch.watch()
    await asyncio.sleep(QUIET_SECONDS)
    await batch.each((_SEEN,), fork)


@asynccontextmanager
async def _fork(batch: Batch, parent: Life) -> AsyncIterator[tuple[list[Life], dict[str, float]]]:
    """The children, deleted in the end, and what the server told of its stages. Raises RuntimeFailure."""
    path = f"/sandboxes/{parent.id}/fork"
    results, told = await batch.server.timed_call("POST", path, {"count": CHILDREN})
    children = [Life(batch.server, result["sandbox"]) for result in results if "sandbox" in result]
    try:
        if len(children) != CHILDREN:
            raise RuntimeFailure(f"not every child started: {[r for r in results if 'sandbox' not in r]}")
        yield children, told
    finally:
        await batch.delete(children)


async def _compare(batch: Batch) -> None:
    compared: dict[tuple[str, str | None], tuple[str, str]] = {(NAME, end): ("fork", end) for end in ENDS}
    compared["freeze", None] = ("fork", "frozen")
    capture = batch.home.template_capture()
    await batch.engine(capture, ["restore", "fork"], compared, children=CHILDREN, ready=_BARE_VMS)
