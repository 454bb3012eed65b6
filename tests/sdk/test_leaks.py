"""Many lives later the host has what it had before."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from tests.server import STATE, Server, running_server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


def _count(server: Server) -> dict[str, Any]:
    """What a server could leak, counted."""
    namespaces = json.loads(subprocess.check_output(["ip", "-json", "netns", "list"]) or b"[]")
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))
    children = subprocess.run(
        ["ps", "--ppid", str(server.pid), "-o", "pid="], capture_output=True, text=True, check=False
    )
    return {
        "processes": len(children.stdout.split()),
        "namespaces": len(namespaces),
        "links": len(links),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "open files": len(list(Path(f"/proc/{server.pid}/fd").iterdir())),
        "work folders": len(list((server.home / "workspace").iterdir())),
        "captures": len(list((server.home / "captures").iterdir())),
    }


def _settles_to(server: Server, before: dict[str, Any], seconds: float = 30.0) -> None:
    """Spare VMs are made in the background, so the numbers come back after a while."""
    end = time.monotonic() + seconds
    while (now := _count(server)) != before:
        assert time.monotonic() < end, f"before {before}, now {now}"
        time.sleep(0.2)


def _settled(server: Server) -> dict[str, Any]:
    """The numbers once they have been the same for a while."""
    last, since = _count(server), time.monotonic()
    while time.monotonic() - since < 4:
        time.sleep(0.2)
        if (now := _count(server)) != last:
            last, since = now, time.monotonic()
    return last


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], None]:
    def use(server: Server) -> None:
        for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"):
            monkeypatch.setenv(name, server.environment[name])

    return use


def test_fifty_lives_and_fifty_pauses_leave_nothing(connect: Callable[[Server], None]) -> None:
    with running_server(STATE / "home-leaks", stopped_vms=0, hot_vms=1, bare_vms=1) as server:
        connect(server)
        Sandbox.create("base").kill()
        before = _settled(server)
        for _ in range(50):
            Sandbox.create("base").kill()
        _settles_to(server, before)

        sandbox = Sandbox.create("base", timeout=600)
        sandbox.files.write("file", "kept")
        for cycle in range(50):
            sandbox.pause()
            sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=600)
            if cycle % 10 == 0:
                assert sandbox.files.read("file") == "kept"
        assert sandbox.files.read("file") == "kept"
        sandbox.kill()
        _settles_to(server, before)
