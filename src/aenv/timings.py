"""How long the stages of one request took, told to the client in a `Server-Timing` header.

The header is W3C Server Timing: `name;dur=milliseconds`. Stages ending in a state ("running",
"answering") count from the start of the request; the others are lengths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Timings:
    """Stage name to milliseconds, for one request."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.stages: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Note that `name` was reached now."""
        self.stages[name] = (time.perf_counter() - self._started) * 1000

    def header(self) -> str:
        """The value of the `Server-Timing` header; empty if nothing was noted."""
        return ", ".join(f"{name};dur={ms:.1f}" for name, ms in self.stages.items())


_current: ContextVar[Timings | None] = ContextVar("timings", default=None)


@contextmanager
def collect() -> Iterator[Timings]:
    """Collect the stages of everything called inside, child tasks included."""
    timings = Timings()
    token = _current.set(timings)
    try:
        yield timings
    finally:
        _current.reset(token)


def mark(name: str) -> None:
    """Note that the request has reached `name`, if someone collects."""
    if (timings := _current.get()) is not None:
        timings.mark(name)


class Stopwatch:
    """Measures from its making to the call of `stop`, which may come from a callback."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._timings = _current.get()
        self._started = time.perf_counter()

    def stop(self, *_ignored: object) -> None:
        """Note the time, if someone collects."""
        if self._timings is not None:
            self._timings.stages[self._name] = (time.perf_counter() - self._started) * 1000


@contextmanager
def measure(name: str) -> Iterator[None]:
    """Note how long the block took, if someone collects. Also when it raises."""
    stopwatch = Stopwatch(name)
    try:
        yield
    finally:
        stopwatch.stop()
