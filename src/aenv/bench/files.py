"""Large files through the server, against the same bytes straight to and from the same agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from aenv.bench.rows import Report, Row
from aenv.bench.server import ONE_GUEST, Clock, forget_peak, resident, running_server
from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient

BLOCK = os.urandom(1 << 20)
BLOCKS = 256
SIZE = BLOCKS * len(BLOCK)
PATH = "/home/user/bench.bin"

_TARGET = "ratio ≤ 1.43"
"""At least 0.7 of its speed."""


async def measure(report: Report, home: Path, runs: int) -> None:
    """Upload and download 256 MiB, `runs` times each way, and watch the server's memory."""
    up, down = (report.row(f"{name}_256mib", target=_TARGET) for name in ("upload", "download"))
    memory = [report.row(f"{name}_memory", unit="MiB") for name in ("upload", "download")]
    async with running_server(home, settings=ONE_GUEST) as server:
        sandbox = await server.create()
        through, direct = server.guest(sandbox), server.direct_guest(sandbox)
        before = resident(server.pid)
        await _upload(through)  # the first write makes the file's blocks
        await _download(direct)
        for index in range(runs):
            with report.attempt(f"upload {index + 1}", up, memory[0]), _Growth(server.pid, before, memory[0]):
                up.add(await _upload(through))
            with report.attempt(f"upload {index + 1} without the server"):
                up.reference.append(await _upload(direct))
            with (
                report.attempt(f"download {index + 1}", down, memory[1]),
                _Growth(server.pid, before, memory[1]),
            ):
                down.add(await _download(through))
            with report.attempt(f"download {index + 1} without the server"):
                down.reference.append(await _download(direct))
        await server.call("DELETE", f"/sandboxes/{sandbox['sandboxID']}")


class _Growth:
    """Notes how far a process's memory was above `before`, bytes, at its highest during the block."""

    def __init__(self, pid: int, before: int, row: Row) -> None:
        self._pid = pid
        self._before = before
        self._row = row

    def __enter__(self) -> None:
        forget_peak(self._pid)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._row.add(max(0, resident(self._pid, "VmHWM") - self._before) / (1 << 20))


async def _blocks() -> AsyncIterator[bytes]:
    for _ in range(BLOCKS):
        yield BLOCK


async def _upload(guest: EnvdClient) -> float:
    """Milliseconds."""
    clock = Clock()
    await guest.files.write(PATH, _blocks())
    took = clock.ms()
    size = (await guest.files.stat(PATH)).size
    if size != SIZE:
        raise RuntimeFailure(f"{size} bytes arrived of {SIZE}")
    return took


async def _download(guest: EnvdClient) -> float:
    """Milliseconds."""
    clock = Clock()
    size = 0
    async for chunk in guest.files.read(PATH):
        size += len(chunk)
    took = clock.ms()
    if size != SIZE:
        raise RuntimeFailure(f"{size} bytes came of {SIZE}")
    return took
