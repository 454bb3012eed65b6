"""Pauses and snapshots of the file system alone: a cold boot from a whole disk, with the same identity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import SandboxState

from tests.sdk.client import Client, eventually
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(200)]

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture
def own(client: Client) -> Iterator[Any]:
    """A sandbox with a file that was just written, and a process that a reboot ends."""
    sandbox = client.create(envs={"GREETING": "hello"})
    sandbox.commands.run("sleep 5471", background=True, timeout=0)
    sandbox.commands.run("for i in $(seq 200); do echo $i > file-$i; done; ln -s file-1 link")
    yield sandbox
    sandbox.kill()


def _boot_id(sandbox: Any) -> str:
    return str(sandbox.files.read(BOOT_ID))


def _sleepers(sandbox: Any) -> str:
    return str(sandbox.commands.run("pgrep -c -fx 'sleep 5471' || true").stdout.strip())


def _is_rebooted(sandbox: Any, last_boot: str) -> None:
    """It has booted, its files are whole and it is who it was."""
    assert _boot_id(sandbox) != last_boot
    assert _sleepers(sandbox) == "0"
    told = "echo $GREETING $(hostname) $E2B_SANDBOX_ID; cat file-* | sort -n | md5sum; cat link"
    expected = "seq 200 | md5sum; echo 1"
    first, *files = sandbox.commands.run(told).stdout.splitlines()
    assert files == sandbox.commands.run(expected).stdout.splitlines()
    greeting, _, sandbox_id = first.split()
    assert (greeting, sandbox_id) == ("hello", sandbox.sandbox_id)


def _detail(server: Server, sandbox_id: str) -> Any:
    """What the SDK doesn't show of the answer."""
    answer = httpx.get(f"{server.url}/sandboxes/{sandbox_id}", headers={"X-API-KEY": server.key})
    return answer.json()


def test_a_pause_of_the_file_system_ends_in_a_boot(client: Client, server: Server, own: Any) -> None:
    boot_id = _boot_id(own)
    assert own.pause(mode="filesystem")
    assert not own.pause(mode="filesystem")  # it is paused already
    assert not own.is_running()
    info = own.get_info()
    assert info.state is SandboxState.PAUSED
    assert info.envd_unresponsive_at_pause is None
    assert _detail(server, own.sandbox_id)["pauseMode"] == "filesystem"
    again = client.connect(own.sandbox_id, timeout=300)
    _is_rebooted(again, boot_id)
    assert again.commands.run("hostname").stdout.strip() == own.sandbox_id
    assert "pauseMode" not in _detail(server, own.sandbox_id)

    # A sandbox that was booted is one as any other.
    again.commands.run("sleep 5471", background=True, timeout=0)
    boot_id = _boot_id(again)
    assert again.pause(strict=True)
    assert _detail(server, own.sandbox_id)["pauseMode"] == "full"
    restored = client.connect(own.sandbox_id, timeout=300)
    assert _boot_id(restored) == boot_id
    assert _sleepers(restored) == "1"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_older_word_for_it(client: Client, own: Any) -> None:
    boot_id = _boot_id(own)
    assert own.pause(keep_memory=False)
    _is_rebooted(client.connect(own.sandbox_id, timeout=300), boot_id)


@pytest.mark.long
def test_a_whole_pause_can_be_rebooted(client: Client, own: Any) -> None:
    boot_id = _boot_id(own)
    own.commands.run("sync", user="root")  # else what was just written may be lost, as after a power cut
    assert own.pause()
    rebooted = client.connect(own.sandbox_id, timeout=300, on_resume="reboot")
    _is_rebooted(rebooted, boot_id)
    boot_id = _boot_id(rebooted)
    assert _boot_id(client.connect(own.sandbox_id, on_resume="reboot")) == boot_id  # it runs: nothing to do


@pytest.mark.long
def test_a_snapshot_of_the_file_system(client: Client, own: Any) -> None:
    boot_id = _boot_id(own)
    snapshot = own.create_snapshot(mode="filesystem")
    assert _boot_id(own) == boot_id
    assert _sleepers(own) == "1"
    copy = client.create(snapshot.snapshot_id, envs={"GREETING": "hello"})
    _is_rebooted(copy, boot_id)
    assert copy.kill()
    assert client.sandbox_class.delete_snapshot(snapshot.snapshot_id, **client.options)
    assert own.pause()  # its memory has not gone with the snapshot
    assert _sleepers(client.connect(own.sandbox_id, timeout=300)) == "1"


@pytest.mark.long
def test_a_deadline_that_keeps_the_file_system(client: Client, server: Server) -> None:
    lifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    short = client.create(timeout=4, lifecycle=lifecycle)
    short.files.write("file", "kept")
    boot_id = _boot_id(short)
    eventually(lambda: short.get_info().state is SandboxState.PAUSED)
    eventually(lambda: _detail(server, short.sandbox_id).get("pauseMode") == "filesystem")
    again = client.connect(short.sandbox_id, timeout=300)
    assert again.files.read("file") == "kept"
    assert _boot_id(again) != boot_id
    assert again.kill()
