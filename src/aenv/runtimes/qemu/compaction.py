"""When a capture or a disk has become wasteful, and making a tighter one of the same state.

- Each pause and snapshot puts one more overlay on a disk. Past `MAX_OVERLAYS` the upper ones are merged.
- A memory delta holds all that differs from its base and so grows over many pauses. Once it is large beside
  what the base holds, both become a new base. A smaller delta costs less than what a base of its own does:
  that one shares no page with other sandboxes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from aenv.disks.merge import merge, merge_from
from aenv.memory.flatten import flatten
from aenv.runtimes.base import Capture, Layer
from aenv.runtimes.qemu.layers import DISK_OVERLAY, MEMORY_BASE, DiskLayers, QemuLayers
from aenv.tasks import finish

T = TypeVar("T")

GoOn = Callable[[], None]
"""Called between two pieces of work; raises what ends it."""

MAX_OVERLAYS: Final = 32
"""Each overlay is a descriptor and a table in every VM that opens it, and a step in every read."""

MAX_DELTA: Final = 64 << 20
"""Smaller deltas, in bytes, are loaded in less than 0.2 s even under emulation."""

KEPT_FACTOR: Final = 2
"""How much more is borne while a VMM that goes on from the same state at once would be given up for it."""


class Stopped(Exception):
    """The work was given up."""


class Workshop:
    """One thread for work that nobody waits for; it rests as long as it works.

    Its priority is that of the others: the interpreter's lock, when the host is busy, would be held by a
    thread that doesn't get to run, and the server would stand still with it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "aenv-compaction")

    async def run(self, work: Callable[[GoOn], T]) -> T:
        """Run `work`; if the caller is cancelled, wait until it has stopped."""
        stop = threading.Event()
        since = 0.0

        def begin() -> T:
            nonlocal since
            since = time.monotonic()
            return work(go_on)

        def go_on() -> None:
            nonlocal since
            if stop.wait(time.monotonic() - since):
                raise Stopped
            since = time.monotonic()

        future = asyncio.get_running_loop().run_in_executor(self._thread, begin)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            # It ends with `Stopped`, or with a failure that nobody is left to hear of.
            await finish(asyncio.gather(future, return_exceptions=True))
            raise

    async def close(self) -> None:
        """End the thread."""
        await asyncio.to_thread(self._thread.shutdown)


def overlays_to_merge(overlays: Sequence[Path], factor: int = 1) -> int | None:
    """From which overlay on (lowest first) all are to be merged, if there are too many. Raises OSError."""
    return merge_from([_bytes(path) for path in overlays], factor * MAX_OVERLAYS)


def is_wasteful(capture: Capture, *, kept: bool) -> bool:
    """Whether the capture is worth the work of `compacted`. Blocking. Raises RuntimeFailure, OSError."""
    factor = KEPT_FACTOR if kept else 1
    many = overlays_to_merge(DiskLayers.of(capture).overlays, factor) is not None
    return many or _large_delta(capture, factor * MAX_DELTA) is not None


def compacted(capture: Capture, folder: Path, go_on: GoOn) -> Capture:
    """The same state in fewer and smaller layers; new ones are written to `folder`. Blocking.

    Raises RuntimeFailure, OSError; what was written is then the caller's to remove.
    """
    layers = list(capture.layers)
    overlays = DiskLayers.of(capture).overlays
    start = overlays_to_merge(overlays)
    if start is not None:
        merged = folder / "disk.qcow2"
        merge(overlays[start:], merged, go_on)
        layers = [each for each in layers if each.path not in overlays[start:]]
        layers.append(Layer(DISK_OVERLAY, merged))
    memory = _large_delta(capture, MAX_DELTA)
    if memory is not None:
        flat = folder / "memory-base"
        flatten(*memory, flat, go_on)
        layers = [each for each in layers if each.path not in memory]
        layers.insert(0, Layer(MEMORY_BASE, flat))
    return replace(capture, layers=tuple(layers))


def _large_delta(capture: Capture, size: int) -> tuple[Path, Path] | None:
    """Base and delta of a capture whose delta has `size` bytes or more, and half of what its base has."""
    layers = QemuLayers.of(capture) if capture.memory else None
    if layers is None or layers.memory_delta is None:
        return None
    if _bytes(layers.memory_delta) < max(size, _bytes(layers.memory_base) // 2):
        return None
    return layers.memory_base, layers.memory_delta


def _bytes(path: Path) -> int:
    """What a file takes on the disk."""
    return path.stat().st_blocks * 512
