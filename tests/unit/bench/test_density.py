"""The benchmark of density, against a server that is none: what is counted, and that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from aenv.bench import density
from aenv.bench.rows import Report
from aenv.errors import RuntimeFailure


class StubServer:
    """Keeps sandboxes; `broken` requests are refused, and a list may show too few."""

    def __init__(self, *, broken: str = "", hidden: int = 0) -> None:
        self.sandboxes = {"earlier": "paused"}
        self.four_paused = asyncio.Event()
        self._broken = broken
        self._hidden = hidden

    async def create(self) -> dict[str, Any]:
        name = f"s{len(self.sandboxes)}"
        self.sandboxes[name] = "running"
        return {"sandboxID": name}

    async def call(self, method: str, path: str, _body: Mapping[str, Any] | None = None) -> Any:
        if path == self._broken:
            raise RuntimeFailure("refused")
        if method == "GET":
            limit = int(path.rpartition("=")[2])
            paused = [name for name, state in self.sandboxes.items() if state == "paused"]
            return paused[: max(0, limit - self._hidden)]
        name = path.split("/")[2]
        if method == "DELETE":
            del self.sandboxes[name]
        else:
            self.sandboxes[name] = "paused"
            if list(self.sandboxes.values()).count("paused") == 4:
                self.four_paused.set()
        return None


class StubHome:
    """5 MiB for each capture, and VMMs that went."""

    def __init__(self, server: StubServer) -> None:
        self._server = server

    def captures_mib(self) -> float:
        return 5.0 * list(self._server.sandboxes.values()).count("paused")

    def vmms(self) -> int:
        return 0


async def measured(server: StubServer, size: density.Size) -> tuple[Report, list[str]]:
    said: list[str] = []
    report = Report(said.append, "fake")
    home = cast("Any", StubHome(server))
    await density.measure_paused(report, cast("Any", server), home, size)
    return report, said


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "SETTLE_SECONDS", 0.0)


async def test_paused_sandboxes_are_counted_listed_and_removed() -> None:
    server = StubServer()
    report, said = await measured(server, density.Size(paused=7, page=5))
    assert said == []
    made, vmms, lists = report.rows
    assert (made.n, made.ok, made.values) == (7, 7, [5.0])
    assert (vmms.values, vmms.met()) == ([0], True)
    assert lists.n == lists.ok > 0
    assert server.sandboxes == {"earlier": "paused"}


async def test_one_that_isnt_paused_counts_as_failed_and_is_removed() -> None:
    server = StubServer(broken="/sandboxes/s3/pause")
    report, said = await measured(server, density.Size(paused=4))
    assert said == ["a paused sandbox failed: refused"]
    assert (report.rows[0].n, report.rows[0].ok) == (4, 3)
    assert server.sandboxes == {"earlier": "paused"}


async def test_a_list_that_lacks_some_counts_as_failed() -> None:
    server = StubServer(hidden=1)
    report, said = await measured(server, density.Size(paused=4, page=5))
    lists = report.rows[2]
    assert (lists.ok, lists.values) == (0, [])
    assert lists.n > 0
    assert said == ["list failed: 4 paused sandboxes are listed of 5"]


async def test_a_cancelled_measurement_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "SETTLE_SECONDS", 3600.0)
    server = StubServer()
    task = asyncio.ensure_future(measured(server, density.Size(paused=3)))
    async with asyncio.timeout(30):
        await server.four_paused.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.sandboxes == {"earlier": "paused"}
