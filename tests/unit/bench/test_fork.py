"""Forks that are measured: what was started is deleted, whatever became of it."""

from __future__ import annotations

from typing import Any

import pytest

from aenv.bench import fork
from aenv.bench.batch import Life
from aenv.bench.rows import Report
from tests.unit.bench.test_batch import StubServer, make


class ForkingServer(StubServer):
    """Starts only `started` children of a fork."""

    def __init__(self, started: int) -> None:
        super().__init__()
        self._started = started

    async def timed_call(self, method: str, path: str, body: Any = None) -> tuple[Any, dict[str, float]]:
        if not path.endswith("/fork"):
            return await super().timed_call(method, path, body)
        children = [{"sandbox": {"sandboxID": f"c{number}"}} for number in range(self._started)]
        failed = [{"error": "no room"}] * (body["count"] - self._started)
        return [*children, *failed], {"running": 2.0, "frozen": 3.0}

    def deleted(self) -> set[str]:
        return {path.rpartition("/")[2] for method, path in self.calls if method == "DELETE"}


async def run(server: ForkingServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, list[str]]:
    """Time a fork of one sandbox."""
    monkeypatch.setattr(fork, "QUIET_SECONDS", 0.0)
    batch, report, said = make(server, 1)
    report.rows.clear()
    fork.make_rows(report)

    async def create(life: Life) -> None:
        life.sandbox = {"sandboxID": "parent"}

    await batch.each((), create)
    await fork.timed(batch)
    await batch.end()
    return report, said


async def test_all_children_of_a_fork_are_timed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkingServer(fork.CHILDREN)
    report, said = await run(server, monkeypatch)
    assert said == []
    timed = [row for row in report.rows if row.name != "fork16_seen"]
    assert [(row.name, row.end, row.ok, row.n) for row in timed] == [
        ("fork16", "running", 1, 1),
        ("fork16", "answering", 1, 1),
        ("fork16", "usable", 1, 1),
        ("freeze", None, 1, 1),
    ]
    assert (timed[0].values, timed[3].values) == ([2.0], [3.0])
    assert server.deleted() == {"parent", *(f"c{number}" for number in range(fork.CHILDREN))}


async def test_a_fork_that_lacks_children_failed_and_those_it_has_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ForkingServer(fork.CHILDREN - 1)
    report, said = await run(server, monkeypatch)
    assert said == ["fork16 failed: not every child started: [{'error': 'no room'}]"]
    assert [row.ok for row in report.rows] == [0] * 5
    assert server.deleted() == {"parent", *(f"c{number}" for number in range(fork.CHILDREN - 1))}
