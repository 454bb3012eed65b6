"""Rows, as JSON and as a table."""

from __future__ import annotations

import json

import pytest

from aenv.bench.rows import COLUMNS, Report, Row
from aenv.errors import RuntimeFailure


@pytest.fixture
def said() -> list[str]:
    """What the user was told."""
    return []


@pytest.fixture
def report(said: list[str]) -> Report:
    """A report on nothing yet."""
    return Report(said.append, "fake")


def test_a_row_has_the_fields_that_all_benchmarks_share() -> None:
    row = Row("pause", "paused", target="≤ 150", n=3)
    for value in (10.0, 20.0, 30.0):
        row.add(value)
    row.reference += [40.0, 40.0]
    assert row.summary() == {
        "name": "pause",
        "end": "paused",
        "n": 3,
        "ok": 3,
        "p50": 20.0,
        "p95": 29.0,
        "p99": 29.8,
        "unit": "ms",
        "reference": 40.0,
        "ratio": 0.5,
    }


def test_a_row_without_values_or_reference_says_so() -> None:
    summary = Row("pause", n=2).summary()
    assert (summary["ok"], summary["n"]) == (0, 2)
    assert [summary[name] for name in ("end", "p50", "p95", "p99", "reference", "ratio")] == [None] * 6


def test_one_value_is_every_percentile() -> None:
    row = Row("idle", unit="kB")
    row.add(12.34567, ok=1000)
    summary = row.summary()
    assert [summary[name] for name in ("p50", "p95", "p99", "ok")] == [12.35, 12.35, 12.35, 1000]


def test_failures_count_and_are_told(report: Report, said: list[str]) -> None:
    row = report.row("pause")
    for index in range(3):
        with report.attempt(f"run {index}", row):
            if index == 1:
                raise RuntimeFailure("the disk is full")
            row.add(1.0)
    assert (row.n, row.ok) == (3, 2)
    assert said == ["run 1 failed: the disk is full"]


def test_the_same_failure_is_told_once_and_counts_each_time(report: Report, said: list[str]) -> None:
    row = report.row("idle")
    for _ in range(1000):
        with report.attempt("a socket", row):
            raise ConnectionResetError
    assert (row.n, row.ok, said) == (1000, 0, ["a socket failed: ConnectionResetError"])


def test_a_mistake_in_the_benchmark_is_no_failure_of_the_server(report: Report) -> None:
    with pytest.raises(KeyError), report.attempt("run"):
        raise KeyError("running")


def test_the_result_is_one_json_object(report: Report) -> None:
    report.row("pause", "paused").add(1.0)
    result = json.loads(json.dumps(report.result()))
    assert set(result) == {"machine", "rows"}
    assert {"cpu", "cores", "kernel", "load", "runtime", "versions"} == set(result["machine"])
    assert [row["name"] for row in result["rows"]] == ["pause"]


def test_the_table_shows_the_target_too(report: Report) -> None:
    report.row("pause", target="≤ 150").add(1.5)
    (cells,) = report.cells()
    shown = dict(zip(COLUMNS, cells, strict=True))
    assert (shown["target"], shown["p50"], shown["ratio"], shown["met"]) == ("≤ 150", "1.5", "", "yes")


@pytest.mark.parametrize(
    ("target", "met"),
    [
        ("", None),
        ("≤ 20", True),
        ("≤ 19", False),
        ("≥ 20", True),
        ("p90 ≤ 28, p95 ≤ 29", True),
        ("≤ 20, p95 ≤ 28", False),
        ("ratio ≤ 0.5", True),
        ("ratio ≤ 0.4", False),
    ],
)
def test_a_target_is_judged(target: str, met: bool | None) -> None:
    row = Row("pause", target=target, values=[10.0, 20.0, 30.0], reference=[40.0])
    assert row.met() is met


def test_without_values_or_reference_nothing_is_met() -> None:
    assert Row("pause", target="≤ 20").met() is None
    assert Row("pause", target="ratio ≤ 1", values=[1.0]).met() is False
