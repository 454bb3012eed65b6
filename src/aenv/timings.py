"""How long operations and their stages take: told to the client in a `Server-Timing` header, and counted.

The header is W3C Server Timing: `name;dur=milliseconds`. Stages ending in a state ("running",
"answering") count from the start of the request; the others are lengths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from prometheus_client import Histogram

from aenv.errors import AenvError, Retry

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds: from a look into the database to the cold boot of a guest under emulation."""

OPERATIONS = Histogram(
    "aenv_operation_duration_seconds",
    "Time of operations on sandboxes, whoever asked for them, by their outcome.",
    ["operation", "outcome"],
    buckets=BUCKETS,
    registry=None,  # one process may hold several servers, each with its own registry
)

STAGES = Histogram(
    "aenv_stage_duration_seconds",
    "Time of the stages of operations; running and answering count from the begin of the operation.",
    ["operation", "stage"],
    buckets=BUCKETS,
    registry=None,
)


class Timings:
    """Stage name to milliseconds, for one request or operation; what is noted counts for `outer` too."""

    def __init__(self, outer: Timings | None = None) -> None:
        self.started = time.perf_counter()
        self.stages: dict[str, float] = {}
        self._outer = outer

    def mark(self, name: str) -> None:
        """Note that `name` was reached now."""
        self.stages[name] = (time.perf_counter() - self.started) * 1000
        if self._outer is not None:
            self._outer.mark(name)

    def note(self, name: str, milliseconds: float) -> None:
        """Note how long `name` took."""
        self.stages[name] = milliseconds
        if self._outer is not None:
            self._outer.note(name, milliseconds)

    def header(self) -> str:
        """The value of the `Server-Timing` header; empty if nothing was noted."""
        return ", ".join(f"{name};dur={ms:.1f}" for name, ms in self.stages.items())


_current: ContextVar[Timings | None] = ContextVar("timings", default=None)


@contextmanager
def collect() -> Iterator[Timings]:
    """Collect the stages of everything called inside, child tasks included."""
    timings = Timings(_current.get())
    token = _current.set(timings)
    try:
        yield timings
    finally:
        _current.reset(token)


@contextmanager
def operation(name: str) -> Iterator[None]:
    """Count how long the block and its stages took.

    The outcome is `ok`, `refused` if nothing has happened, or else `failed`.
    """
    outcome = "failed"
    with collect() as timings:
        try:
            yield
            outcome = "ok"
        except AenvError as error:
            if error.retry is not Retry.UNKNOWN:
                outcome = "refused"
            raise
        finally:
            OPERATIONS.labels(name, outcome).observe(time.perf_counter() - timings.started)
            for stage, milliseconds in timings.stages.items():
                STAGES.labels(name, stage).observe(milliseconds / 1000)


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
            self._timings.note(self._name, (time.perf_counter() - self._started) * 1000)


@contextmanager
def measure(name: str) -> Iterator[None]:
    """Note how long the block took, if someone collects. Also when it raises."""
    stopwatch = Stopwatch(name)
    try:
        yield
    finally:
        stopwatch.stop()
