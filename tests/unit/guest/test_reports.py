"""What a guest reports is checked: it may be hostile."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from aenv.errors import RuntimeFailure
from aenv.guest.reports import MAX_FIELDS, MAX_TEXT, parse_journal, parse_metrics
from aenv.runtimes.fake_guest import METRICS

ENTRY = {
    "sequence": 3,
    "time": "2026-01-02T03:04:05.123456789Z",
    "level": "warn",
    "logger": "kernel",
    "message": "hot",
    "fields": {"a": "b"},
}
PAGE = {"journal": "boot", "entries": [ENTRY], "more": False}


def test_metrics() -> None:
    metrics = parse_metrics(METRICS)
    assert (metrics.cpu_count, metrics.cpu_used_pct, metrics.mem_total) == (2, 12.5, 512 << 20)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_count": "2"},
        {"cpu_count": True},
        {"cpu_count": 10**9},
        {"cpu_used_pct": json.loads("1e999")},
        {"cpu_used_pct": json.loads("NaN")},
        {"cpu_used_pct": -1},
        {"cpu_used_pct": 10**400},
        {"mem_used": 2**63},
        {"mem_used": -1},
        {"disk_used": 1.5},
        {"disk_total": None},
        {"ts": {}},
    ],
)
def test_metrics_that_can_not_be_true(change: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFailure, match="metrics"):
        parse_metrics({**METRICS, **change})


def test_metrics_must_be_complete() -> None:
    with pytest.raises(RuntimeFailure, match="metrics"):
        parse_metrics({"ts": 1})


def test_a_journal() -> None:
    page = parse_journal(PAGE)
    (entry,) = page.entries
    assert (page.journal, page.more) == ("boot", False)
    assert (entry.sequence, entry.level, entry.logger, entry.message) == (3, "warn", "kernel", "hot")
    assert entry.fields == {"a": "b"}
    assert entry.time == pytest.approx(1767323045.123456, abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": -1},
        {"sequence": "3"},
        {"sequence": 2**63},
        {"time": 5},
        {"time": "yesterday"},
        {"level": "fatal"},
        {"level": []},
        {"message": None},
        {"logger": {}},
        {"fields": {"a": 1}},
        {"fields": ["a"]},
    ],
)
def test_an_entry_that_makes_no_sense(change: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFailure, match="journal"):
        parse_journal({**PAGE, "entries": [{**ENTRY, **change}]})


@pytest.mark.parametrize(
    "change", [{"entries": None}, {"entries": [1]}, {"entries": [ENTRY, ENTRY]}, {"journal": 1}]
)
def test_a_journal_that_makes_no_sense(change: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFailure, match="journal"):
        parse_journal({**PAGE, **change})


def test_what_is_too_much_is_cut() -> None:
    greedy = {
        "message": "\ud800" + "x" * 100_000,
        "time": "9999-12-31T00:00:00Z",
        "fields": {f"{number:099}": "y" * 100_000 for number in range(100)},
    }
    (entry,) = parse_journal({**PAGE, "entries": [{**ENTRY, **greedy}]}).entries
    assert len(entry.message) == MAX_TEXT
    assert entry.message.startswith("?x")
    assert entry.time <= time.time()
    assert len(entry.fields) <= MAX_FIELDS
    assert all(len(value) == MAX_TEXT for value in entry.fields.values())
    assert (
        parse_journal({**PAGE, "entries": [{**ENTRY, "time": "0001-01-01T00:00:00Z"}]}).entries[0].time == 0
    )
