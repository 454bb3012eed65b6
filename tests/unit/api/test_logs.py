"""What the server logs about a sandbox names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from aenv.api import logs
from aenv.errors import RuntimeFailure
from aenv.node import Node
from aenv.proxy.app import ProxyApp
from aenv.runtimes.fake import FakeRuntime
from tests.unit.api.support import fake_settings, running


@pytest.fixture
def as_before() -> Iterator[None]:
    """The logging of the tests comes back afterwards."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_log_for_programs(capsys: pytest.CaptureFixture[str], as_before: None) -> None:
    logs.configure("json")
    with structlog.contextvars.bound_contextvars(sandbox="i1"):
        try:
            raise LookupError("nobody foresaw this")
        except LookupError:
            structlog.get_logger().error("it failed", exc_info=True, pool="hot")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["event"] == "it failed"
    assert (entry["level"], entry["sandbox"], entry["pool"]) == ("error", "i1", "hot")
    assert "LookupError: nobody foresaw this" in entry["exception"]
    assert entry["timestamp"].endswith("Z")


async def test_whatever_happens_to_a_sandbox_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: ProxyApp, *_: Any) -> None:
        raise LookupError("nobody foresaw this")

    settings = fake_settings(tmp_path, hot_vms=0, bare_vms=0)
    node = Node(settings)
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as entries:
        async with running(settings, node) as server:
            assert isinstance(node.runtime, FakeRuntime)
            sandbox_id = await server.create()
            (instance,) = node.runtime.instances.values()
            # Its agent is deaf, the pause fails, and it can't go on: four modules have something to say.
            instance.guest.responsive.clear()
            monkeypatch.setattr("aenv.sandboxes.capturing.FREEZE_TIMEOUT", 0.01)
            node.runtime.order_failure("capture", RuntimeFailure("no"))
            node.runtime.order_failure("thaw", RuntimeFailure("no"))
            failed = await server.request("POST", f"/sandboxes/{sandbox_id}/pause")
            assert failed.status == 500
            monkeypatch.setattr(ProxyApp, "_answer", broken)
            headers = {"e2b-sandbox-id": sandbox_id, "e2b-sandbox-port": "80"}
            assert (await server.request("GET", "/", headers=headers)).status == 500
    told = {entry["event"]: entry.get("sandbox") for entry in entries if entry["log_level"] != "debug"}
    wanted = {
        "the guest agent isn't ready for a capture",
        "sandbox lost",
        "request failed",
        "unforeseen failure",
    }
    assert wanted <= told.keys()
    assert {told[event] for event in wanted} == {sandbox_id}
