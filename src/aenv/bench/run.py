"""Runs one area, on the event loop that the server uses too."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from aenv.bench import bare, density, engine, execs, files, fork, lifecycle, proxy
from aenv.bench.pace import Pace
from aenv.bench.rows import Report, Say
from aenv.settings import Settings

PACED: dict[str, Callable[[Report, Path, Pace], Awaitable[None]]] = {
    "lifecycle": lifecycle.measure,
    "fork": fork.measure,
}
"""Areas whose operations can follow each other in several ways."""

UNPACED: dict[str, Callable[[Report, Path, int], Awaitable[None]]] = {
    "density": density.measure,
    "exec": execs.measure,
    "files": files.measure,
}


def run(area: str, home: Path, pace: Pace, say: Say) -> Report:
    """Measure `area`, one of `PACED`, `UNPACED` or `proxy`, with the runtime that the settings choose.

    Raises HostNotReady if a server can't be started.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if area == "proxy":
            report = Report(say, "fake")
            runner.run(proxy.measure(report, pace.runs))
            return report
        home = home.resolve()
        report = Report(say, Settings(home=home).runtime.replace("auto", "qemu"))
        report.versions["qemu"] = _qemu_version()
        runner.run(_measure(area, report, home, pace))
        return report


async def _measure(area: str, report: Report, home: Path, pace: Pace) -> None:
    if area in PACED:
        await PACED[area](report, home, pace)
    else:
        await UNPACED[area](report, home, pace.runs)


def engine_source() -> str:
    """The bare engine, as it is."""
    return "\n\n".join(Path(str(module.__file__)).read_text() for module in (bare, engine))


def _qemu_version() -> str:
    said = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False)
    return said.stdout.partition("\n")[0].rpartition("version ")[2]
