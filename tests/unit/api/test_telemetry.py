"""Metrics and logs over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aenv.node import Node
from aenv.runtimes.fake import FakeRuntime
from aenv.runtimes.fake_guest import FakeGuest
from tests.unit.api.support import Server, fake_settings, is_error, running

METRIC = {
    "cpuCount": 2,
    "cpuUsedPct": 12.5,
    "memUsed": 64 << 20,
    "memTotal": 512 << 20,
    "memCache": 32 << 20,
    "diskUsed": 1 << 30,
    "diskTotal": 10 << 30,
}


@dataclass
class Rig:
    """A server and the guests behind it."""

    server: Server
    node: Node

    async def get(self, path: str) -> Any:
        answer = await self.server.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    async def guest(self, sandbox_id: str) -> FakeGuest:
        sandbox = await self.node.sandboxes.get(sandbox_id)
        assert isinstance(self.node.runtime, FakeRuntime)
        assert sandbox.instance_id is not None
        return self.node.runtime.instances[sandbox.instance_id].guest


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = fake_settings(tmp_path, hot_vms=0, bare_vms=0)
    node = Node(settings)
    async with running(settings, node) as server:
        yield Rig(server, node)


async def test_metrics_of_one_sandbox(rig: Rig) -> None:
    sandbox_id = await rig.server.create()
    before = int(time.time())
    (metric,) = await rig.get(f"/sandboxes/{sandbox_id}/metrics")
    assert metric.pop("timestamp").endswith("Z")
    assert before <= metric.pop("timestampUnix") <= time.time()
    assert metric == METRIC
    assert await rig.get(f"/sandboxes/{sandbox_id}/metrics?start={before}&end={before + 60}") != []
    assert await rig.get(f"/sandboxes/{sandbox_id}/metrics?end={before - 60}") == []
    assert await rig.get(f"/sandboxes/{sandbox_id}/metrics?start={before + 60}") == []


async def test_metrics_of_several_sandboxes(rig: Rig) -> None:
    ids = [await rig.server.create() for _ in range(2)]
    body = await rig.get(f"/sandboxes/metrics?sandbox_ids={ids[0]},{ids[1]},unknown")
    assert sorted(body["sandboxes"]) == sorted(ids)
    assert METRIC.items() <= body["sandboxes"][ids[0]].items()
    repeated = await rig.get(f"/sandboxes/metrics?sandbox_ids={ids[0]}&sandbox_ids={ids[1]}")
    assert sorted(repeated["sandboxes"]) == sorted(ids)
    assert await rig.get("/sandboxes/metrics?sandbox_ids=") == {"sandboxes": {}}


async def test_wrong_questions_about_metrics(rig: Rig) -> None:
    sandbox_id = await rig.server.create()
    many = ",".join(f"i{number}" for number in range(101))
    for path, word in (
        ("/sandboxes/metrics", "sandbox_ids"),
        (f"/sandboxes/metrics?sandbox_ids={many}", "100"),
        (f"/sandboxes/{sandbox_id}/metrics?start=x", "start"),
        (f"/sandboxes/{sandbox_id}/metrics?start=-1", "start"),
        (f"/sandboxes/{sandbox_id}/metrics?end={2**70}", "end"),
        (f"/sandboxes/{sandbox_id}/metrics?start=2&end=1", "start"),
        (f"/sandboxes/{sandbox_id}/logs?limit=-1", "limit"),
        (f"/v2/sandboxes/{sandbox_id}/logs?limit=1001", "limit"),
        (f"/v2/sandboxes/{sandbox_id}/logs?cursor=yesterday", "cursor"),
        (f"/v2/sandboxes/{sandbox_id}/logs?direction=up", "direction"),
        (f"/v2/sandboxes/{sandbox_id}/logs?level=fatal", "level"),
        (f"/v2/sandboxes/{sandbox_id}/logs?search={'x' * 257}", "search"),
    ):
        assert is_error(await rig.server.request("GET", path), 400, word), path


@pytest.mark.parametrize("path", ["/sandboxes/{}/metrics", "/sandboxes/{}/logs", "/v2/sandboxes/{}/logs"])
async def test_a_sandbox_that_is_gone_has_neither(rig: Rig, path: str) -> None:
    sandbox_id = await rig.server.create()
    await rig.get(path.format(sandbox_id))
    await rig.server.request("DELETE", f"/sandboxes/{sandbox_id}")
    assert is_error(await rig.server.request("GET", path.format(sandbox_id)), 404, "not found")
    assert is_error(await rig.server.request("GET", path.format("no%2Fsuch")), 404, "not found")


async def test_logs_in_the_old_form(rig: Rig) -> None:
    sandbox_id = await rig.server.create()
    guest = await rig.guest(sandbox_id)
    guest.note("kernel panics", "warn", "kernel", pid="7", level="a field is no level")
    body = await rig.get(f"/sandboxes/{sandbox_id}/logs")
    assert [json.loads(log["line"])["message"] for log in body["logs"]] == [
        "sandbox created",
        "kernel panics",
    ]
    expected = {"pid": "7", "level": "warn", "logger": "kernel", "message": "kernel panics"}
    assert json.loads(body["logs"][1]["line"]) == expected
    entry = body["logEntries"][1]
    assert (entry["message"], entry["level"], entry["fields"]["pid"]) == ("kernel panics", "warn", "7")
    assert entry["fields"]["logger"] == "kernel"
    assert entry["timestamp"] == body["logs"][1]["timestamp"]
    assert len((await rig.get(f"/sandboxes/{sandbox_id}/logs?limit=1"))["logs"]) == 1
    assert await rig.get(f"/sandboxes/{sandbox_id}/logs?limit=0") == {"logs": [], "logEntries": []}
    later = int(time.time() * 1000) + 60_000
    assert (await rig.get(f"/sandboxes/{sandbox_id}/logs?start={later}"))["logs"] == []


async def test_logs_in_the_new_form(rig: Rig) -> None:
    sandbox_id = await rig.server.create()
    guest = await rig.guest(sandbox_id)
    for number, level in enumerate(("debug", "info", "warn", "error")):
        guest.note(f"entry {number}", level)

    async def messages(query: str) -> list[str]:
        body = await rig.get(f"/v2/sandboxes/{sandbox_id}/logs?{query}")
        assert list(body) == ["logs"]
        return [entry["message"] for entry in body["logs"]]

    everything = ["sandbox created", "entry 0", "entry 1", "entry 2", "entry 3"]
    assert await messages("") == await messages("direction=forward") == everything
    assert await messages("direction=backward") == everything[::-1]
    assert await messages("direction=backward&limit=2") == ["entry 3", "entry 2"]
    assert await messages("level=warn") == ["entry 2", "entry 3"]
    assert await messages("search=entry%202") == ["entry 2"]
    assert await messages("search=Entry") == []
    now = int(time.time() * 1000)
    assert (
        await messages(f"cursor={now + 60_000}")
        == await messages(f"cursor={now - 60_000}&direction=backward")
        == []
    )
    assert await messages(f"cursor={now - 60_000}") == everything
    assert await messages(f"cursor={now + 60_000}&direction=backward") == everything[::-1]


async def test_a_paused_sandbox_is_not_woken(rig: Rig) -> None:
    sandbox_id = await rig.server.create(autoResume={"enabled": True}, autoPause=True)
    (await rig.guest(sandbox_id)).note("before")
    await rig.get(f"/sandboxes/{sandbox_id}/metrics")
    await rig.server.request("POST", f"/sandboxes/{sandbox_id}/pause", {})
    assert len(await rig.get(f"/sandboxes/{sandbox_id}/metrics")) == 1
    logs = (await rig.get(f"/v2/sandboxes/{sandbox_id}/logs"))["logs"]
    assert [entry["message"] for entry in logs][:2] == ["sandbox created", "before"]
    assert (await rig.get(f"/sandboxes/{sandbox_id}"))["state"] == "paused"


async def test_a_client_can_not_reach_the_guests_journal(rig: Rig) -> None:
    sandbox_id = await rig.server.create()
    headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983"}
    answer = await rig.server.request("GET", "/logs", headers=headers)
    assert answer.status == 404, answer
