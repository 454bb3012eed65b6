"""Runs the bare engine on captures of a server, for figures to compare the server's with."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aenv.bench import engine
from aenv.errors import RuntimeFailure
from aenv.runtimes.base import Capture
from aenv.runtimes.qemu.command import TB_SIZE_MIB

_TIMEOUT = 300.0
"""Seconds for the engine to do a plan."""

Results = list[dict[str, list[Any]]]
"""For each VM, by step, what each of the step's turns came to."""


async def run_engine(home: Path, capture: Capture, steps: Sequence[str], **plan: Any) -> Results:
    """Let the bare engine do `steps`; `plan` are fields of its `Plan`. Raises RuntimeFailure.

    Its own files are in a folder in `home`, which is removed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps({**engine_files(capture, folder), "steps": steps, **plan}))
        return await _run(file)


def engine_files(capture: Capture, folder: str) -> dict[str, Any]:
    """The fields `capture` and `machine` of the engine's plan, for VMs that live in `folder`."""
    files: dict[str, list[str]] = {}
    for layer in capture.layers:
        files.setdefault(layer.role, []).append(str(layer.path))
    accel, model = capture.identity.cpu.split("/")[:2]
    base = files["memory-base"][0]
    return {
        "capture": {
            "base": base,
            "delta": files.get("memory-delta", [None])[0],
            "state": files["device-state"][0],
            "disk": [*files["disk-base"], *files.get("disk-overlay", [])],
        },
        "machine": {
            "base": base,
            "accel": "kvm" if accel == "kvm" else f"tcg,thread=multi,tb-size={TB_SIZE_MIB}",
            "cpu": model,
            "cpus": capture.resources.cpu_count,
            "memory_mib": capture.resources.memory_mib,
            "disk_mib": capture.resources.disk_mib,
            "folder": folder,
        },
    }


async def _run(plan: Path) -> Results:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        engine.__name__,
        str(plan),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            told, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        words = said.decode(errors="replace").strip().splitlines()
        raise RuntimeFailure(f"the bare engine failed: {words[-1] if words else process.returncode}")
    results: Results = json.loads(told)
    return results
