"""`aenv bench` on real VMs, as small as it goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from aenv.bench import density
from aenv.bench.rows import Report
from tests.server import AENV, home

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


def _rows(area: str, runs: int, *options: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    command = [str(AENV), "bench", area, "--runs", str(runs), "--json", "--home", str(home("bench"))]
    command += options
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["machine"]["runtime"] == "qemu"
    rows = {(row["name"], row["end"]): row for row in result["rows"]}
    assert all(row["ok"] == row["n"] == runs for row in rows.values()), done.stderr
    return rows


def test_exec() -> None:
    (row,) = _rows("exec", 3).values()
    assert (row["name"], row["unit"]) == ("exec", "ms")
    assert row["ratio"] == pytest.approx(row["p50"] / row["reference"], rel=0.01)


@pytest.mark.long
def test_files() -> None:
    rows = _rows("files", 1)
    for name in ("upload_256mib", "download_256mib"):
        assert rows[name, None]["ratio"] > 0
    for name in ("upload_memory", "download_memory"):
        assert rows[name, None]["p50"] < 16


@pytest.mark.long
@pytest.mark.parametrize(("mode", "runs"), [("sequential", 1), ("burst", 2)])
def test_lifecycle(mode: str, runs: int) -> None:
    rows = _rows("lifecycle", runs, "--mode", mode)
    for name in ("create_hot", "create_bare", "resume_stopped", "resume_bare"):
        ends = [rows[name, end] for end in ("running", "answering", "usable")]
        assert all(row["ratio"] > 0 for row in ends)
        assert ends[0]["p50"] < ends[1]["p50"] < ends[2]["p50"]
    for name in ("pause", "snapshot", "snapshot_256mib", "freeze"):
        assert rows[name, None]["ratio"] > 0
    assert rows["pause_seen", None]["p50"] > 0


@pytest.mark.long
def test_fork() -> None:
    rows = _rows("fork", 1)
    ends = [rows["fork16", end] for end in ("running", "answering", "usable")]
    assert all(row["ratio"] > 0 for row in (*ends, rows["freeze", None]))
    assert ends[0]["p50"] < ends[1]["p50"] < ends[2]["p50"]
    assert rows["fork16_seen", None]["p50"] > 0


@pytest.mark.long
def test_density() -> None:
    said: list[str] = []
    report = Report(said.append, "qemu")
    asyncio.run(density.measure(report, home("bench"), 2, density.Size(paused=3)))
    assert said == []
    rows = {row.name: row for row in report.rows}
    assert rows["child_fresh"].n == rows["child_fresh"].ok == 2
    assert 0 < rows["child_fresh"].values[0] < rows["child_bash"].values[0] < 512
    assert all(rows[name].reference for name in ("child_fresh", "child_bash"))
    assert rows["fit"].values[0] > 0
    assert (rows["paused"].ok, rows["paused"].n) == (3, 3)
    assert rows["paused_vmms"].values == [0]
    assert rows["list"].ok == rows["list"].n > 0
