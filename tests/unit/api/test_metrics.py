"""What the server counts about itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aenv import unexpected
from aenv.sandboxes.service import SandboxService
from tests.server import ROOT
from tests.unit.api.support import Server, fake_settings, is_error, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def value(server: Server, name: str, labels: Mapping[str, str]) -> float:
    """A sample of `/metrics`, which needs no key; 0 if there is none with these labels."""
    async with server.session.get(server.url + "/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = await response.text()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return sum(each.value for each in samples if (each.name, each.labels) == (name, labels))


async def test_requests_are_counted_by_route_not_by_path(server: Server) -> None:
    route = {"method": "GET", "route": "/sandboxes/{sandbox_id}"}
    wanted = [
        ({**route, "status": "404"}, 2),
        ({"method": "GET", "route": "none", "status": "404"}, 1),
        ({"method": "GET", "route": "none", "status": "401"}, 1),
        ({"method": "other", "route": "none", "status": "404"}, 1),
    ]
    name = "aenv_http_requests_total"
    before = [await value(server, name, labels) for labels, _ in wanted]
    for method, path in (
        ("GET", "/sandboxes/a"),
        ("GET", "/sandboxes/b"),
        ("GET", "/nix"),
        ("PROPFIND", "/nix"),
    ):
        assert (await server.request(method, path)).status == 404
    async with server.session.get(server.url + "/nix") as response:
        assert response.status == 401
    for (labels, count), was in zip(wanted, before, strict=True):
        assert await value(server, name, labels) - was == count, labels
    assert await value(server, "aenv_http_request_duration_seconds_count", route) >= 2


async def test_sandboxes_and_pools(server: Server) -> None:
    ids = [await server.create() for _ in range(2)]
    await server.request("POST", f"/sandboxes/{ids[0]}/pause")
    assert await value(server, "aenv_sandboxes", {"state": "running"}) == 1
    assert await value(server, "aenv_sandboxes", {"state": "paused"}) == 1
    assert await value(server, "aenv_sandboxes", {"state": "lost"}) == 0
    assert await value(server, "aenv_pool_size", {"pool": "stopped"}) == 1
    for sandbox_id in ids:
        await server.request("DELETE", f"/sandboxes/{sandbox_id}")
    assert await value(server, "aenv_sandboxes", {"state": "running"}) == 0


async def test_operations_and_their_stages_are_timed(server: Server) -> None:
    async def count(operation: str, outcome: str = "ok") -> float:
        labels = {"operation": operation, "outcome": outcome}
        return await value(server, "aenv_operation_duration_seconds_count", labels)

    wanted = {"create": 1, "pause": 1, "resume": 1, "snapshot": 1, "fork": 1, "child": 2, "kill": 1}
    before = {operation: await count(operation) for operation in wanted}
    refused = await count("pause", "refused")
    sandbox_id = await server.create()
    for path, body in (
        ("pause", {}),
        ("pause", {}),  # a conflict
        ("resume", {"timeout": 600}),
        ("snapshots", {}),
        ("fork", {"count": 2}),
    ):
        await server.request("POST", f"/sandboxes/{sandbox_id}/{path}", body)
    await server.request("DELETE", f"/sandboxes/{sandbox_id}")
    assert {operation: await count(operation) - before[operation] for operation in wanted} == wanted
    assert await count("pause", "refused") == refused + 1
    for operation, stage in (("child", "queue"), ("child", "answering"), ("pause", "capture")):
        labels = {"operation": operation, "stage": stage}
        assert await value(server, "aenv_stage_duration_seconds_count", labels) >= wanted[operation]
    assert await value(server, "aenv_captured_bytes_total", {"content": "memory"}) > 0


async def test_pools_memory_and_limits(server: Server) -> None:
    hit = {"pool": "stopped", "outcome": "hit"}
    before = await value(server, "aenv_pool_takes_total", hit)
    sandbox_id = await server.create()
    await server.request("POST", f"/sandboxes/{sandbox_id}/pause")
    assert await value(server, "aenv_vmm_memory_bytes", {"of": "stopped", "kind": "private"}) > 0
    await server.request("POST", f"/sandboxes/{sandbox_id}/resume", {"timeout": 600})
    assert await value(server, "aenv_pool_takes_total", hit) == before + 1
    assert await value(server, "aenv_vmm_memory_bytes", {"of": "running", "kind": "shared"}) > 0
    admitted = await value(server, "aenv_admitted_cpus", {})
    assert 0 < admitted < await value(server, "aenv_allowed_cpus", {})
    assert await value(server, "aenv_admitted_memory_bytes", {}) % (512 << 20) == 0
    await server.request("DELETE", f"/sandboxes/{sandbox_id}")
    assert await value(server, "aenv_admitted_cpus", {}) == admitted - server.settings.cpu_count
    assert await value(server, "aenv_starts_waiting", {}) == 0


async def test_the_document_names_every_metric_and_its_labels(server: Server) -> None:
    rows = re.findall(r"^\| (`aenv_.*?) \| (.*?) \|", (ROOT / "docs/monitoring.md").read_text(), re.MULTILINE)
    told = {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    sandbox_id = await server.create()
    await server.request("DELETE", f"/sandboxes/{sandbox_id}")
    async with server.session.get(server.url + "/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    served = {
        f"{family.name}_total" if family.type == "counter" else family.name: {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in families
        if not family.name.endswith("_created")  # the library's own: when a counter began
    }
    assert told == served


@pytest.mark.parametrize("where", ["api", "tasks"])
async def test_what_nobody_foresaw_is_logged_in_full_and_counted_once(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(self: SandboxService, *_: Any) -> None:
        async def work() -> None:
            raise LookupError("nobody foresaw this")

        await (self._core.whole(work()) if where == "tasks" else work())

    monkeypatch.setattr(SandboxService, "get", broken)
    name = "aenv_unexpected_errors_total"
    async with running(fake_settings(tmp_path, hot_vms=0, bare_vms=0)) as server:
        before = [await value(server, name, {"where": each}) for each in ("api", "tasks")]
        assert is_error(await server.request("GET", "/sandboxes/a"), 500, "log")
        after = [await value(server, name, {"where": each}) for each in ("api", "tasks")]
        route = {"method": "GET", "route": "/sandboxes/{sandbox_id}", "status": "500"}
        assert await value(server, "aenv_http_requests_total", route) == 1
    assert sum(after) == sum(before) + 1
    assert after[("api", "tasks").index(where)] == before[("api", "tasks").index(where)] + 1
    out = capsys.readouterr().out
    assert "Traceback" in out
    assert "nobody foresaw this" in out
    assert "in work" in out


async def test_what_fails_in_the_event_loop_itself_counts_too(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise LookupError("nobody foresaw this")

    name, labels = "aenv_unexpected_errors_total", {"where": "loop"}
    before = await value(server, name, labels)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(unexpected.in_loop)
    try:
        loop.call_soon(broken)
        assert await value(server, name, labels) == before + 1
    finally:
        loop.set_exception_handler(None)
    assert "nobody foresaw this" in capsys.readouterr().out
