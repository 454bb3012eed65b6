"""A command's round trip through the server, against the same command asked of the same agent directly."""

from __future__ import annotations

from pathlib import Path

from aenv.bench.rows import Report
from aenv.bench.server import ONE_GUEST, Clock, running_server
from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient

COMMAND = "true"
WARM_UP = 5
"""Runs that don't count: an emulator translates the guest's code when it first runs."""


async def measure(report: Report, home: Path, runs: int) -> None:
    """`bash -l -c true`, `runs` times each way, one after the other."""
    row = report.row("exec")
    async with running_server(home, settings=ONE_GUEST) as server:
        sandbox = await server.create()
        through, direct = server.guest(sandbox), server.direct_guest(sandbox)
        for _ in range(WARM_UP):
            await _timed(through)
            await _timed(direct)
        for index in range(runs):
            with report.attempt(f"command {index + 1}", row):
                row.add(await _timed(through))
            with report.attempt(f"command {index + 1} without the server"):
                row.reference.append(await _timed(direct))
        await server.call("DELETE", f"/sandboxes/{sandbox['sandboxID']}")


async def _timed(guest: EnvdClient) -> float:
    """Milliseconds until its end is known here."""
    clock = Clock()
    result = await guest.processes.run(COMMAND)
    took = clock.ms()
    if result.exit_code != 0:
        raise RuntimeFailure(f"the command answered {result}")
    return took
