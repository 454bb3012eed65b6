"""How long create, pause, resume, snapshot and kill take, as a client sees it, beside the bare engine.

`running` and `freeze` are told by the server in `Server-Timing`; every other end is the moment at which this
client has its answer. One server has spare VMs; the other has only spare VMM processes and keeps no VM of a
paused sandbox.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from aenv.bench.batch import ENDS, QUIET_SECONDS, Batch, Life, Place, start_rows
from aenv.bench.home import Home
from aenv.bench.pace import Pace
from aenv.bench.rows import Report
from aenv.bench.server import running_server
from aenv.errors import RuntimeFailure
from aenv.runtimes.base import Capture

WRITTEN_MIB = 256
_WRITE = f"perl -e 'my $b = q(aenv) x (1 << 18); print $b for 1..{WRITTEN_MIB}' > ~/written && sync"
_WRITTEN = f"snapshot_{WRITTEN_MIB}mib"

_START = ("≤ 60, p95 ≤ 100", "≤ 300", "≤ 700")


async def measure(report: Report, home: Path, pace: Pace) -> None:
    """Lives on both servers, in turns with the bare engine."""
    await _spare(report, home, pace)
    await _bare(report, home, pace)


async def _spare(report: Report, home: Path, pace: Pace) -> None:
    start_rows(report, "create_hot", ("", "≤ 60", "≤ 200"))
    report.row("pause", target="≤ 100")
    report.row("pause_seen", target="p90 ≤ 60")
    start_rows(report, "resume_stopped", ("", "≤ 50", "≤ 150"))
    for name, target in (("snapshot", ""), ("freeze", "≤ 60"), ("snapshot_seen", "")):
        report.row(name, target=target)
    written = report.row(_WRITTEN)
    report.row("kill")
    dirty: list[float] = []
    async with running_server(home, settings={"hot_vms": 2}) as server:
        for size in pace.batches():
            await asyncio.sleep(2 * QUIET_SECONDS)
            batch = Batch(Place(server, Home(home), report, pace), size)
            try:
                await _life_on_spare(batch, dirty)
            finally:
                await batch.end()
    if dirty:
        written.target = written_target(dirty)


def written_target(dirty: Sequence[float]) -> str:
    """100 ms, and 200 ms for each 100 MiB of memory that became dirty; `dirty` is the MiB of each run."""
    return f"≤ {100 + 2 * statistics.median(dirty):.0f}"


async def _life_on_spare(batch: Batch, dirty: list[float]) -> None:
    async def snapshot(life: Life) -> None:
        told = await batch.timed("snapshot", life, "POST", "/snapshots")
        batch.row("freeze").add(told["frozen"])

    async def snapshot_written(life: Life) -> None:
        before = await asyncio.to_thread(batch.home.delta_mib, life.id)
        await _write(life)
        await batch.timed(_WRITTEN, life, "POST", "/snapshots")
        dirty.append(await asyncio.to_thread(batch.home.delta_mib, life.id) - before)

    await batch.each(("create_hot",), lambda life: _create(batch, life, "create_hot"))
    await batch.watch()
    await batch.each(("pause",), lambda life: _pause(batch, life))
    await _compare_spare(batch)
    await batch.each(("resume_stopped",), lambda life: _resume(batch, life, "resume_stopped"))
    await batch.note_seen("pause_seen")
    await batch.watch()
    await batch.each(("snapshot", "freeze"), snapshot)
    await batch.note_seen("snapshot_seen")
    await batch.each((_WRITTEN,), snapshot_written)
    await batch.each(("kill",), lambda life: _kill(batch, life))


async def _compare_spare(batch: Batch) -> None:
    """A VM by hand has run a command before it is stopped, as a hot VM has."""
    if not batch.lives:
        return
    compared: dict[tuple[str, str | None], tuple[str, str]] = {
        ("pause", None): ("pause", "done"),
        ("snapshot", None): ("snapshot", "done"),
        ("freeze", None): ("snapshot", "frozen"),
        (_WRITTEN, None): (_WRITTEN, "done"),
    }
    for end in ENDS:
        compared["create_hot", end] = compared["resume_stopped", end] = ("stopped", end)
    capture = batch.home.capture_of(batch.lives[0].id)
    steps = ["restore", "stopped", "pause", "snapshot", "prepare", _WRITTEN]
    await batch.engine(capture, steps, compared, prepare=_WRITE)


async def _bare(report: Report, home: Path, pace: Pace) -> None:
    for name in ("create_bare", "resume_bare"):
        start_rows(report, name, _START)
    async with running_server(home, settings={"hot_vms": 0, "stopped_vms": 0}) as server:
        for size in pace.batches():
            await asyncio.sleep(2 * QUIET_SECONDS)
            batch = Batch(Place(server, Home(home), report, pace), size)
            try:
                await _life_on_bare(batch)
            finally:
                await batch.end()


async def _life_on_bare(batch: Batch) -> None:
    async def pause(life: Life) -> None:
        await batch.server.call("POST", f"/sandboxes/{life.id}/pause", {})

    async def compare(name: str, capture: Capture) -> None:
        await batch.engine(capture, ["restore"], {(name, end): ("restore", end) for end in ENDS})

    await batch.each(("create_bare",), lambda life: _create(batch, life, "create_bare"))
    await compare("create_bare", batch.home.template_capture())
    await batch.each((), pause)
    if batch.lives:
        await compare("resume_bare", batch.home.capture_of(batch.lives[0].id))
    await batch.each(("resume_bare",), lambda life: _resume(batch, life, "resume_bare"))


async def _create(batch: Batch, life: Life, name: str) -> None:
    await batch.start(name, life, "/v2/sandboxes", templateID="base")


async def _resume(batch: Batch, life: Life, name: str) -> None:
    await batch.start(name, life, f"/v2/sandboxes/{life.id}/connect")


async def _pause(batch: Batch, life: Life) -> None:
    await batch.timed("pause", life, "POST", "/pause")


async def _kill(batch: Batch, life: Life) -> None:
    await batch.timed("kill", life, "DELETE")
    life.sandbox = {}


async def _write(life: Life) -> None:
    result = await life.guest.processes.run(_WRITE)
    if result.exit_code != 0:
        raise RuntimeFailure(f"the guest can't write {WRITTEN_MIB} MiB: {result}")
