"""The server is killed; the next one finds what was safe, goes on with what lives, removes what is left."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from e2b import NotFoundException, Sandbox, SandboxException

from tests.server import Server, home, running_server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]


def _use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"):
        monkeypatch.setenv(name, server.environment[name])


def _kill(pid: int) -> None:
    """Kill a process and wait until it is gone, or a zombie."""
    os.kill(pid, signal.SIGKILL)
    command = Path(f"/proc/{pid}/cmdline")
    end = time.monotonic() + 10
    while command.exists() and command.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


def _record(server: Server, sandbox_id: str) -> dict[str, Any]:
    """A sandbox's record in the database."""
    with sqlite3.connect(server.home / "aenv.db") as connection:
        row = connection.execute("SELECT record FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
    connection.close()
    return dict(json.loads(row[0]))


def _vmm(server: Server, sandbox_id: str) -> int:
    """The process of a running sandbox's VMM."""
    instance = _record(server, sandbox_id)["instance_id"]
    return int(next(line.split()[0] for line in server.vmms() if f"/{instance} " in line))


def test_what_runs_and_what_is_paused_survive_a_killed_server(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home("crash")
    with running_server(folder) as server:
        _use(server, monkeypatch)
        paused = Sandbox.create("base", timeout=600)
        paused.files.write("file", "kept")
        snapshot = paused.create_snapshot()
        paused.pause()
        running, unlucky = Sandbox.create("base", timeout=600), Sandbox.create("base", timeout=600)
        running.files.write("file", "written by the first server's client")
        process = running.commands.run("while sleep 0.1; do date +%s.%N >> /tmp/ticks; done", background=True)
        vmm = _vmm(server, running.sandbox_id)
        _kill(server.pid)
        _kill(_vmm(server, unlucky.sandbox_id))

    with running_server(folder) as server:
        _use(server, monkeypatch)
        assert _vmm(server, running.sandbox_id) == vmm
        adopted = Sandbox.connect(running.sandbox_id)
        assert process.pid in [each.pid for each in adopted.commands.list()]
        before = len(adopted.files.read("/tmp/ticks").splitlines())
        end = time.monotonic() + 30
        while len(adopted.files.read("/tmp/ticks").splitlines()) <= before:
            assert time.monotonic() < end, "its processes must run on"
        adopted.pause()
        adopted = Sandbox.connect(running.sandbox_id)
        assert adopted.files.read("file") == "written by the first server's client"
        assert process.pid in [each.pid for each in adopted.commands.list()]

        again = Sandbox.connect(paused.sandbox_id)
        assert again.files.read("file") == "kept"
        copy = Sandbox.create(snapshot.snapshot_id)
        assert copy.files.read("file") == "kept"
        with pytest.raises((NotFoundException, SandboxException)):
            Sandbox.connect(unlucky.sandbox_id)
        lost = _record(server, unlucky.sandbox_id)
        assert lost["state"] == "lost"
        assert "its VMM ended while no server watched it" in lost["reason"]
        for sandbox in (adopted, again, copy):
            sandbox.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not server.vmms()
    assert not server.namespaces()
    assert not server.links()
    assert not server.mounts()
    assert not list((folder / "workspace").iterdir())


def _change(file: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.long
def test_what_cannot_be_adopted_is_lost_with_the_reason_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = home("crash")
    with running_server(folder) as server:
        _use(server, monkeypatch)
        hung, older, rebooted, fine = [Sandbox.create("base", timeout=600).sandbox_id for _ in range(4)]
        fine_vmm = _vmm(server, fine)
        os.kill(_vmm(server, hung), signal.SIGSTOP)
        place = {
            each: folder / "workspace" / _record(server, each)["instance_id"] for each in (older, rebooted)
        }
        _kill(server.pid)
        identity = json.loads((place[older] / "instance.json").read_text())["identity"]
        _change(place[older] / "instance.json", identity={**identity, "version": "1.0"})
        _change(place[rebooted] / "vmm.json", boot="another")

    with running_server(folder) as server:
        _use(server, monkeypatch)
        assert _vmm(server, fine) == fine_vmm
        Sandbox.connect(fine).files.write("file", "at once")
        reasons = {
            hung: "monitor didn't answer",
            older: "not of this server's version",
            rebooted: "the host was restarted",
        }
        for sandbox_id, reason in reasons.items():
            with pytest.raises(NotFoundException):  # at once, but for the hung one
                Sandbox.connect(sandbox_id, request_timeout=120)
            record = _record(server, sandbox_id)
            assert record["state"] == "lost"
            assert reason in record["reason"]
        Sandbox.kill(fine)
    assert not server.vmms()
    assert not server.namespaces()
    assert not list((folder / "workspace").iterdir())
