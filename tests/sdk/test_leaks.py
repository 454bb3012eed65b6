"""Many lives later the host has what it had before."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, home, running_server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


def _count(server: Server) -> dict[str, Any]:
    """What a server could leak, counted."""
    return {
        "processes": len(server.vmms()),
        "namespaces": len(server.namespaces()),
        "links": len(server.links()),
        "mounts": len(server.mounts()),
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


def _client(server: Server, program: str) -> None:
    """Run a user's program in a process of its own: its connections end with it."""
    command = [sys.executable, "-c", f"from e2b import Sandbox\n{program}"]
    finished = subprocess.run(
        command, env=server.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stderr


LIVES = """
for _ in range({count}):
    Sandbox.create("base").kill()
"""

PAUSES = """
sandbox = Sandbox.create("base", timeout=600)
sandbox.files.write("file", "kept")
for _ in range({count}):
    sandbox.pause()
    sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert sandbox.files.read("file") == "kept"
sandbox.kill()
"""


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.long)])
def test_lives_and_pauses_leave_nothing(count: int) -> None:
    with running_server(home("leaks"), stopped_vms=0, hot_vms=1, bare_vms=1) as server:
        _client(server, LIVES.format(count=1))
        before = _settled(server)
        _client(server, LIVES.format(count=count))
        _settles_to(server, before)
        _client(server, PAUSES.format(count=count))
        _settles_to(server, before)
