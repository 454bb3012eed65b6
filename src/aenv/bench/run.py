"""Runs one area, on the event loop that the server uses too."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import uvloop

from aenv.bench import execs, files, lifecycle, proxy
from aenv.bench.rows import Report, Say
from aenv.settings import Settings

AREAS = {"lifecycle": lifecycle.measure, "exec": execs.measure, "files": files.measure}
"""Those that run on a home folder, with the runtime that the settings choose."""


def run(area: str, home: Path, runs: int, say: Say) -> Report:
    """Measure `area`, one of `AREAS` or `proxy`. Raises HostNotReady if a server can't be started."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if area == "proxy":
            report = Report(say, "fake")
            runner.run(proxy.measure(report, runs))
            return report
        report = Report(say, Settings(home=home).runtime.replace("auto", "qemu"))
        report.versions["qemu"] = _qemu_version()
        runner.run(AREAS[area](report, home, runs))
        return report


def _qemu_version() -> str:
    said = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False)
    return said.stdout.partition("\n")[0].rpartition("version ")[2]
