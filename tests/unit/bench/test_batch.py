"""Sandboxes led through operations together: failures count everywhere they are felt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from aenv.bench import batch as batches
from aenv.bench import lifecycle
from aenv.bench.batch import ENDS, Batch, Place, start_rows
from aenv.bench.home import Home
from aenv.bench.pace import Mode, Pace
from aenv.bench.rows import Report
from aenv.bench.server import Server
from aenv.errors import RuntimeFailure
from aenv.guest.events import End, Event, Stdout


class StubGuest:
    """Answers a first command."""

    def __init__(self, output: bytes) -> None:
        self.processes = self
        self._output = output

    async def start(self, _command: str, _arguments: Sequence[str]) -> Any:
        @asynccontextmanager
        async def process() -> AsyncIterator[AsyncIterator[Event]]:
            async def events() -> AsyncIterator[Event]:
                yield Stdout(self._output)
                yield End(0)

            yield events()

        return process()


class StubServer:
    """Creates sandboxes, and refuses every request whose number is in `refused`."""

    def __init__(self, refused: Sequence[int] = (), output: bytes = b"ready\n") -> None:
        self.calls: list[tuple[str, str]] = []
        self._refused = refused
        self._output = output

    async def timed_call(self, method: str, path: str, _body: Any = None) -> tuple[Any, dict[str, float]]:
        self.calls.append((method, path))
        if len(self.calls) - 1 in self._refused:
            raise RuntimeFailure("refused")
        return {"sandboxID": f"s{len(self.calls)}"}, {"running": 1.5}

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        return (await self.timed_call(method, path, body))[0]

    def guest(self, _sandbox: dict[str, Any]) -> StubGuest:
        return StubGuest(self._output)


def make(server: StubServer, size: int) -> tuple[Batch, Report, list[str]]:
    said: list[str] = []
    report = Report(said.append, "fake")
    start_rows(report, "create", ("≤ 1", "", ""))
    report.row("pause")
    place = Place(cast("Server", server), Home(Path("/nowhere")), report, Pace(Mode.BURST, size))
    return Batch(place, size), report, said


async def run(batch: Batch) -> None:
    await batch.each(("create",), lambda life: batch.start("create", life, "/v2/sandboxes"))

    async def pause(life: batches.Life) -> None:
        await batch.timed("pause", life, "POST", "/pause")

    await batch.each(("pause",), pause)
    await batch.end()


async def test_every_end_of_every_sandbox_is_noted() -> None:
    server = StubServer()
    batch, report, said = make(server, 3)
    await run(batch)
    assert said == []
    assert {(row.name, row.end, row.ok, row.n) for row in report.rows} == {
        *(("create", end, 3, 3) for end in ENDS),
        ("pause", None, 3, 3),
    }
    assert batch.row("create", "running").values == [1.5] * 3
    assert batch.row("create", "running").met() is False
    assert sum(method == "DELETE" for method, _ in server.calls) == 3


async def test_what_failed_once_counts_as_failed_from_there_on() -> None:
    server = StubServer(refused=[1])  # the second create
    batch, report, said = make(server, 3)
    await run(batch)
    assert [(row.ok, row.n) for row in report.rows] == [(2, 3)] * 4
    assert said == ["create failed: refused"]
    assert sum(method == "DELETE" for method, _ in server.calls) == 2


async def test_a_wrong_answer_of_the_first_command_is_a_failure_and_cleaned_up() -> None:
    server = StubServer(output=b"no\n")
    batch, report, said = make(server, 1)
    await run(batch)
    assert [(row.ok, row.n) for row in report.rows] == [(0, 1)] * 4
    assert said == ["create failed: the command answered b'no\\n'"]
    assert sum(method == "DELETE" for method, _ in server.calls) == 1


async def test_the_engine_fills_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "QUIET_SECONDS", 0.0)
    plans: list[dict[str, Any]] = []

    async def run_engine(_home: Path, _capture: object, steps: Sequence[str], **plan: Any) -> Any:
        plans.append({"steps": steps, **plan})
        return [{"restore": [{"usable": 10.0 * (index + 1)}]} for index in range(2)]

    monkeypatch.setattr(batches, "run_engine", run_engine)
    batch, _, _ = make(StubServer(), 2)
    await run(batch)
    row = batch.row("create", "usable")
    row.values = [30.0, 30.0]
    await batch.engine(cast("Any", None), ["restore"], {("create", "usable"): ("restore", "usable")})
    assert plans == [{"steps": ["restore"], "count": 2, "gap": 0.0}]
    assert (row.summary()["reference"], row.summary()["ratio"]) == (15.0, 2.0)


async def test_an_engine_that_fails_is_told_and_the_figures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "QUIET_SECONDS", 0.0)

    async def run_engine(*_: object, **_more: object) -> Any:
        raise RuntimeFailure("the bare engine failed: no QEMU")

    monkeypatch.setattr(batches, "run_engine", run_engine)
    batch, _, said = make(StubServer(), 1)
    await run(batch)
    await batch.engine(cast("Any", None), ["restore"], {("create", "usable"): ("restore", "usable")})
    assert said == ["the bare engine failed: the bare engine failed: no QEMU"]
    assert batch.row("create", "usable").summary()["ratio"] is None


def test_the_bound_after_writing_follows_what_became_dirty() -> None:
    assert lifecycle.written_target([100.0, 250.0, 260.0]) == "≤ 600"
