"""The server is killed; the next one finds what was safe and removes what is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from e2b import NotFoundException, Sandbox, SandboxException

from tests.server import Server, home, running_server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]


def _use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"):
        monkeypatch.setenv(name, server.environment[name])


def test_paused_sandboxes_and_snapshots_survive_a_killed_server(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home("crash")
    with running_server(folder) as server:
        _use(server, monkeypatch)
        paused = Sandbox.create("base", timeout=600)
        paused.files.write("file", "kept")
        snapshot = paused.create_snapshot()
        paused.pause()
        running = Sandbox.create("base", timeout=600)
        os.kill(server.pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while (
            Path(f"/proc/{server.pid}/cmdline").exists() and Path(f"/proc/{server.pid}/cmdline").read_bytes()
        ):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert server.vmms(), "a VMM must outlive a killed server, for the next one to find"

    with running_server(folder) as server:
        _use(server, monkeypatch)
        again = Sandbox.connect(paused.sandbox_id)
        assert again.files.read("file") == "kept"
        copy = Sandbox.create(snapshot.snapshot_id)
        assert copy.files.read("file") == "kept"
        with pytest.raises((NotFoundException, SandboxException)):
            Sandbox.connect(running.sandbox_id)
        again.kill()
        copy.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not server.vmms()
    assert not server.namespaces()
    assert not server.links()
    assert not server.mounts()
