"""More creates than the server can take at a time: a short queue, then a clear "later"."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from aenv.errors import Overloaded
from aenv.node import Node
from aenv.sandboxes import turns
from tests.unit.api.support import fake_settings, run_program, running
from tests.unit.sandboxes.conftest import eventually


async def test_starts_beyond_the_queue_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    class Noted(Overloaded):
        def __init__(self, message: str, *, retry_after: float) -> None:
            super().__init__(message, retry_after=retry_after)
            refusals.append(message)

    monkeypatch.setattr(turns, "Overloaded", Noted)
    settings = fake_settings(
        tmp_path, hot_vms=0, bare_vms=0, concurrent_starts=1, max_queued_starts=2, max_start_wait=600
    )
    node = Node(settings)
    async with running(settings, node) as server:
        held = contextlib.AsyncExitStack()
        await held.enter_async_context(node.starter._turns.turn("test"))
        create = ("POST", "/v2/sandboxes", {"templateID": "base"})
        waiting = [asyncio.create_task(server.request(*create)) for _ in range(2)]

        async def both_wait() -> bool:
            return node.starter._turns.waiting == 2

        await eventually(both_wait)
        refused = await server.request(*create)
        assert (refused.status, refused.body["code"]) == (503, 503)
        assert "waiting" in refused.body["message"]
        assert refused.headers["Should-Retry"] == "true"
        assert int(refused.headers["Retry-After"]) >= 1
        # The SDK comes again by itself.
        refusals.clear()
        program = "from e2b import Sandbox; Sandbox.create('base')"
        patient = asyncio.create_task(run_program(server, sys.executable, "-c", program))

        async def was_refused() -> bool:
            return bool(refusals)

        await eventually(was_refused, 60)
        await held.aclose()
        await patient
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [201, 201]
        assert len((await server.request("GET", "/v2/sandboxes")).body) == 3
        assert (await server.request(*create)).status == 201
