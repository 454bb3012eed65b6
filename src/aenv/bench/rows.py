"""What a benchmark reports: rows in one form, beside the machine they were measured on."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from aenv import __version__
from aenv.errors import AenvError

Say = Callable[[str], None]

_CONDITION = re.compile(r"(?:(p\d+|ratio) )?([≤≥]) ([\d.]+)")

FAILURES = (AenvError, aiohttp.ClientError, OSError, TimeoutError, EOFError)
"""What may go wrong in one attempt; anything else is a mistake in the benchmark."""


def machine() -> dict[str, Any]:
    """The hardware and kernel here, and how busy they are with other things."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
    }


def _own_versions() -> dict[str, str]:
    return {"aenv": __version__, "python": platform.python_version()}


@dataclass
class Row:
    """One operation, measured up to one end. `reference` holds the same of what it is compared with."""

    name: str
    end: str | None = None
    unit: str = "ms"
    target: str = ""
    """What is asked, such as `≤ 60, p95 ≤ 100`: of the p50 unless it says otherwise. Not part of the JSON."""
    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    n: int = 0
    ok: int = 0

    def add(self, value: float, *, ok: int = 1) -> None:
        """Note a value that so many successes led to."""
        self.values.append(value)
        self.ok += ok

    def met(self) -> bool | None:
        """Whether the target is met; None without a target or without values."""
        if not self.target or not self.values:
            return None
        found = {**self.summary(), "p90": _percentiles(self.values)[89]}
        for of, relation, bound in _CONDITION.findall(self.target):
            value = found[of or "p50"]
            if value is None or (value > float(bound) if relation == "≤" else value < float(bound)):
                return False
        return True

    def summary(self) -> dict[str, Any]:
        """The row in JSON. `ratio` is ours over the reference: below 1 is faster, or smaller."""
        cuts = _percentiles(self.values)
        p50, reference = cuts[49], _percentiles(self.reference)[49]
        return {
            "name": self.name,
            "end": self.end,
            "n": self.n,
            "ok": self.ok,
            "p50": _rounded(p50),
            "p95": _rounded(cuts[94]),
            "p99": _rounded(cuts[98]),
            "unit": self.unit,
            "reference": _rounded(reference),
            "ratio": round(p50 / reference, 3) if p50 is not None and reference else None,
        }


@dataclass
class Report:
    """The rows of one run. `say` tells the user of each failure as it happens."""

    say: Say
    runtime: str
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=_own_versions)
    rows: list[Row] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)

    def row(self, name: str, end: str | None = None, unit: str = "ms", target: str = "") -> Row:
        """A new row."""
        self.rows.append(Row(name, end, unit, target))
        return self.rows[-1]

    @contextmanager
    def attempt(self, what: str, *rows: Row, n: int = 1) -> Iterator[None]:
        """Count an attempt in `rows`, which the block fills. A failure is told, once, and the run goes on."""
        for row in rows:
            row.n += n
        try:
            yield
        except FAILURES as error:
            self.tell(f"{what} failed: {str(error) or type(error).__name__}")

    def tell(self, problem: str) -> None:
        """Tell the user of a problem, unless it is known already: the thousandth like it says nothing new."""
        if problem not in self._told:
            self._told.add(problem)
            self.say(problem)

    def result(self) -> dict[str, Any]:
        """Everything in JSON."""
        return {
            "machine": {**self.machine, "runtime": self.runtime, "versions": self.versions},
            "rows": [row.summary() for row in self.rows],
        }

    def cells(self) -> list[list[str]]:
        """The table for people, without its head `COLUMNS`."""
        return [_cells(row) for row in self.rows]


COLUMNS = ("operation", "until", "ok/n", "p50", "p95", "p99", "unit", "reference", "ratio", "target", "met")


def _cells(row: Row) -> list[str]:
    found = row.summary()
    shown = [row.name, row.end or "", f"{row.ok}/{row.n}"]
    numbers = [found[name] for name in ("p50", "p95", "p99")]
    shown += ["" if number is None else f"{number:g}" for number in numbers]
    shown.append(row.unit)
    shown += ["" if found[name] is None else f"{found[name]:g}" for name in ("reference", "ratio")]
    return [*shown, row.target, {True: "yes", False: "no", None: ""}[row.met()]]


def _percentiles(values: Sequence[float]) -> Sequence[float | None]:
    """The 99 cuts; None is all of them without values."""
    if len(values) < 2:
        return [values[0] if values else None] * 99
    return statistics.quantiles(values, n=100, method="inclusive")


def _rounded(value: float | None) -> float | None:
    """Four digits say more than any benchmark here can."""
    return None if value is None else float(f"{value:.4g}")
