"""A rollback on real VMs: memory, processes and files of the snapshot, behind the same id."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.sdk.client import Client, eventually
from tests.sdk.scenario import ASK, VARIABLES
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(300)]


def _ask(sandbox: Any) -> tuple[str, int]:
    """The keeper's process id and what it counted: both are in memory only."""
    pid, kept = sandbox.commands.run(ASK).stdout.split()
    return pid, int(kept)


def _roll_back(server: Server, sandbox: Any, snapshot: str) -> httpx.Response:
    return httpx.post(
        f"{server.url}/sandboxes/{sandbox.sandbox_id}/rollback",
        headers={"X-API-KEY": server.key},
        json={"snapshotID": snapshot},
        timeout=120,
    )


def test_a_sandbox_goes_back_and_forth(client: Client, server: Server) -> None:
    sandbox = client.create(timeout=600, envs={"GREETING": "hello"}, metadata={"a": "b"})
    sandbox.files.write("keeper.py", VARIABLES)
    sandbox.files.write("file", "first")
    sandbox.commands.run("python3 keeper.py", background=True, timeout=0)
    sandbox.commands.run(f"until bash -c '{ASK}' >/dev/null 2>&1; do sleep 0.1; done", timeout=200)
    pid, kept = _ask(sandbox)
    first = sandbox.create_snapshot().snapshot_id
    sandbox.files.write("file", "second")
    assert _ask(sandbox) == (pid, kept + 1)
    sandbox.pause()
    client.connect(sandbox.sandbox_id, timeout=600)
    second = sandbox.create_snapshot().snapshot_id
    sandbox.files.write("later", "is given up")
    sandbox.commands.run("pkill -f '[k]eeper.py'; rm file")
    before = sandbox.get_info()

    following = sandbox.commands.run("sleep 600", background=True, timeout=0)
    assert _roll_back(server, sandbox, first).status_code == 204
    with pytest.raises(Exception):  # noqa: B017, PT011 -- what it is differs: its stream was cut, not ended
        following.wait()
    assert _ask(sandbox) == (pid, kept + 1)
    assert sandbox.files.read("file") == "first"
    assert not sandbox.files.exists("later")
    told = sandbox.commands.run("hostname; echo $GREETING $E2B_SANDBOX_ID; pgrep -c sleep || true").stdout
    assert told.split() == [sandbox.sandbox_id, "hello", sandbox.sandbox_id, "0"]
    off = float(sandbox.commands.run("date +%s.%N").stdout) - time.time()
    assert abs(off) < 60, "the clock is not the snapshot's"
    after = sandbox.get_info()
    assert (after.end_at, after.started_at, after.metadata) == (
        before.end_at,
        before.started_at,
        before.metadata,
    )

    assert _roll_back(server, sandbox, second).status_code == 204
    assert _ask(sandbox) == (pid, kept + 2)
    assert sandbox.files.read("file") == "second"
    sandbox.pause()
    client.connect(sandbox.sandbox_id, timeout=600)
    assert _ask(sandbox) == (pid, kept + 3)
    child = client.create(second, timeout=300)
    assert _roll_back(server, child, second).status_code == 400
    child.kill()
    vms = len(server.vmms())
    sandbox.kill()
    eventually(lambda: len(server.vmms()) <= vms)
