"""What the server counts about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aenv import unexpected
from aenv.sandboxes.service import SandboxService
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
