"""What a guest's agent reports: metrics and the journal. Nothing in them is believed unchecked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from aenv.errors import RuntimeFailure

PAGE_BYTES = 1 << 20
"""Largest page of a journal taken from a guest: envd sends up to 128 KiB of text, which JSON may escape."""

MAX_TEXT = 4200
"""Characters kept of a message or a field's value; envd cuts them at 4 KiB."""

MAX_FIELDS = 16

Level = Literal["debug", "info", "warn", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")
"""From the least important to the most."""

_LARGEST = 2**63 - 1
_MAX_CPUS = 4096


@dataclass(frozen=True)
class Metrics:
    """Use of a guest's resources; sizes in bytes, `cpu_used_pct` since the last question."""

    cpu_count: int
    cpu_used_pct: float
    mem_total: int
    mem_used: int
    mem_cache: int
    disk_total: int
    disk_used: int


@dataclass(frozen=True)
class JournalEntry:
    """One thing that happened in a guest. `time` is in seconds since the epoch, never in the future."""

    sequence: int
    time: float
    level: Level
    logger: str
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JournalPage:
    """Entries of a journal in their order. Another `journal` than before means another boot."""

    journal: str
    entries: tuple[JournalEntry, ...]
    more: bool


def parse_metrics(answer: Mapping[str, Any]) -> Metrics:
    """Read the answer of `/metrics`. Raises RuntimeFailure for what can't be true."""
    try:
        _integer(answer["ts"])  # it must make sense; when it was by the guest's clock doesn't matter
        return Metrics(
            cpu_count=_integer(answer["cpu_count"], _MAX_CPUS),
            cpu_used_pct=_number(answer["cpu_used_pct"], 100.0 * _MAX_CPUS),
            mem_total=_integer(answer["mem_total"]),
            mem_used=_integer(answer["mem_used"]),
            mem_cache=_integer(answer["mem_cache"]),
            disk_total=_integer(answer["disk_total"]),
            disk_used=_integer(answer["disk_used"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeFailure("the guest agent sent metrics that can't be read") from error


def parse_journal(answer: Mapping[str, Any]) -> JournalPage:
    """Read the answer of `/logs`. Raises RuntimeFailure unless it makes sense."""
    try:
        journal = _text(answer["journal"], 64)
        entries = tuple(_entry(item) for item in answer["entries"])
        numbers = [entry.sequence for entry in entries]
        if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
            raise ValueError("the entries are out of order")
        return JournalPage(journal, entries, bool(answer["more"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeFailure("the guest agent sent a journal that can't be read") from error


def _entry(item: Mapping[str, Any]) -> JournalEntry:
    if (level := item["level"]) not in LEVELS:
        raise ValueError(f"unknown level {level!r}")
    fields = item.get("fields") or {}
    return JournalEntry(
        sequence=_integer(item["sequence"]),
        time=_moment(item["time"]),
        level=cast("Level", level),
        logger=_text(item["logger"], 64),
        message=_text(item["message"]),
        fields={_text(name, 64): _text(fields[name]) for name in list(fields)[:MAX_FIELDS]},
    )


def _integer(value: Any, largest: int = _LARGEST) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"not a number from 0 to {largest}")
    return value


def _number(value: Any, largest: float) -> float:
    if type(value) not in {int, float} or not 0 <= value <= largest:  # no range has NaN
        raise ValueError(f"not a number from 0 to {largest}")
    return float(value)


def _moment(value: Any) -> float:
    """Seconds since the epoch of an RFC 3339 time; of a clock that is ahead, the present."""
    try:
        return min(max(datetime.fromisoformat(value).timestamp(), 0.0), time.time())
    except OverflowError as error:
        raise ValueError("a time that can't be") from error


def _text(value: Any, longest: int = MAX_TEXT) -> str:
    """Text that can be sent on as UTF-8, cut to `longest` characters."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[:longest].encode("utf-8", "replace").decode()
