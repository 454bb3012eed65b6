"""Deadlines: of sandboxes, of commands, of requests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from e2b import SandboxException, SandboxState, TimeoutException

from tests.sdk.client import Client, eventually

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]


def _left(sandbox: Any) -> float:
    """Seconds until the deadline."""
    return float((sandbox.get_info().end_at - datetime.now(UTC)).total_seconds())


def test_the_deadline_can_be_moved(client: Client, sandbox: Any) -> None:
    sandbox.set_timeout(1000)
    assert 980 < _left(sandbox) <= 1001
    sandbox.set_timeout(600)
    assert 580 < _left(sandbox) <= 601
    client.connect(sandbox.sandbox_id, timeout=10)
    assert _left(sandbox) > 500
    client.connect(sandbox.sandbox_id, timeout=900)
    assert 880 < _left(sandbox) <= 901
    for wrong in (0, -1, 10**9):
        with pytest.raises(SandboxException, match="400"):
            sandbox.set_timeout(wrong)
    with pytest.raises(SandboxException, match="400"):
        client.create(timeout=10**9)


def test_a_sandbox_is_paused_at_its_deadline(client: Client) -> None:
    short = client.create()
    short.commands.run("echo kept > file")
    short.set_timeout(1)
    eventually(lambda: short.get_info().state is SandboxState.PAUSED)
    assert not short.is_running()
    with pytest.raises(TimeoutException):
        short.commands.run("true")
    again = client.connect(short.sandbox_id, timeout=60)
    assert again.files.read("file") == "kept\n"
    assert again.kill()


def test_a_sandbox_is_killed_at_its_deadline_if_asked_for(client: Client) -> None:
    short = client.create(timeout=2, lifecycle={"on_timeout": "kill"})
    eventually(lambda: _gone(short))
    assert not short.kill()


def _gone(sandbox: Any) -> bool:
    try:
        sandbox.get_info()
    except SandboxException:
        return True
    return False


def test_a_command_ends_at_its_timeout(sandbox: Any) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 30", timeout=1)
    assert time.monotonic() - started < 10
    follower = sandbox.commands.run("sleep 3; echo done", background=True, timeout=0)
    with pytest.raises(TimeoutException):
        sandbox.commands.connect(follower.pid, timeout=1).wait()
    # A follower's patience ends, the process doesn't.
    assert follower.wait().stdout == "done\n"
