"""`aenv bench` on real VMs, as small as it goes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.server import AENV, home

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


def _rows(area: str, runs: int) -> dict[tuple[str, str | None], dict[str, Any]]:
    command = [str(AENV), "bench", area, "--runs", str(runs), "--json", "--home", str(home("bench"))]
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
def test_lifecycle() -> None:
    rows = _rows("lifecycle", 1)
    assert {("create_hot", "usable"), ("resume_bare", "running"), ("fork4_bare", "frozen")} <= set(rows)
    assert all(row["reference"] is None for row in rows.values())
