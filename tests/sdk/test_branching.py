"""Connect, pause, snapshots and forks: memory and files go along, and each copy is its own.

For the quick suite, scenario.py goes through them with the synchronous half of both versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2b import SandboxException, SandboxNotFoundException, SandboxState

from tests.sdk.client import Client

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(200)]

BOOT_ID = "/proc/sys/kernel/random/boot_id"
SLEEPER = "sleep 8432"


@pytest.fixture
def own(client: Client) -> Iterator[Any]:
    """A sandbox with a file, and a process that only its memory knows."""
    sandbox = client.create(envs={"GREETING": "hello"}, metadata={"purpose": "branching"})
    sandbox.files.write("file", "first")
    sandbox.commands.run(SLEEPER, background=True, timeout=0)
    yield sandbox
    sandbox.kill()


def _is_the_same(sandbox: Any, boot_id: str, content: str) -> None:
    """It runs on with the memory and the files of the sandbox it comes from."""
    assert sandbox.files.read(BOOT_ID) == boot_id
    assert sandbox.files.read("file") == content
    shown = sandbox.commands.run(f"pgrep -c -fx '{SLEEPER}'; echo $GREETING $(hostname)").stdout
    assert shown == f"1\nhello {sandbox.sandbox_id}\n"


def test_pause_and_connect(client: Client, own: Any) -> None:
    boot_id = own.files.read(BOOT_ID)
    assert own.pause()
    assert not own.pause()
    assert own.get_info().state is SandboxState.PAUSED
    assert not own.is_running()
    again = client.connect(own.sandbox_id, timeout=300)
    assert (again.sandbox_id, again.get_info().state) == (own.sandbox_id, SandboxState.RUNNING)
    _is_the_same(again, boot_id, "first")
    _is_the_same(own, boot_id, "first")  # an object from before the pause is as good
    assert client.connect(own.sandbox_id).get_info().metadata == {"purpose": "branching"}


def test_a_snapshot_outlives_its_source(client: Client, own: Any) -> None:
    boot_id = own.files.read(BOOT_ID)
    snapshot = own.create_snapshot(name="branching")
    assert snapshot.names == ["default/branching"]
    own.files.write("file", "second")
    listed = own.list_snapshots().next_items()
    assert [each.snapshot_id for each in listed] == [snapshot.snapshot_id]
    own.kill()
    for name in (snapshot.snapshot_id, "branching"):
        copy = client.create(name, envs={"GREETING": "hello"})
        try:
            _is_the_same(copy, boot_id, "first")
        finally:
            copy.kill()
    delete = client.sandbox_class.delete_snapshot
    assert delete(snapshot.snapshot_id, **client.options)
    assert not delete(snapshot.snapshot_id, **client.options)


def test_forks_are_their_own(client: Client, own: Any) -> None:
    boot_id = own.files.read(BOOT_ID)
    children = own.fork(count=2)
    assert len({own.sandbox_id, *(child.sandbox_id for child in children)}) == 3
    for number, child in enumerate(children):
        _is_the_same(child, boot_id, "first")
        child.files.write("file", f"of {number}")
        if number == 0:
            (grandchild,) = child.fork(count=1)
            _is_the_same(grandchild, boot_id, "of 0")
            assert grandchild.kill()
    _is_the_same(own, boot_id, "first")
    for number, child in enumerate(children):
        assert child.files.read("file") == f"of {number}"
        assert child.kill()
        with pytest.raises(SandboxNotFoundException):
            client.connect(child.sandbox_id)
    own.pause()
    with pytest.raises(SandboxException, match="409"):
        own.fork(count=1)
    for refused in (own.create_snapshot, lambda: own.set_timeout(60)):
        with pytest.raises(SandboxNotFoundException):
            refused()
