"""Copies of a sandbox are never twins: identity, clock and randomness are their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sdk.client import Client

pytestmark = [pytest.mark.vm, pytest.mark.timeout(300)]

WORKER = """
import os, random, signal, socket

def reseed(*_):
    random.seed()  # from the kernel, which knows that it was copied

signal.signal(signal.SIGUSR1, reseed)
with open("/run/worker.pid", "w") as file:
    print(os.getpid(), file=file)
server = socket.create_server(("127.0.0.1", 9998))
while True:
    peer, _ = server.accept()
    peer.sendall(f"{os.getpid()} {random.getrandbits(64)}".encode())
    peer.close()
"""

HOOK = """#!/bin/sh
echo "$E2B_SANDBOX_ID" >> /run/hook.log
kill -USR1 "$(cat /run/worker.pid)"
"""

DRAW = "exec 3<>/dev/tcp/127.0.0.1/9998; cat <&3"
URANDOM = "head -c 16 /dev/urandom | md5sum"


@pytest.fixture(scope="module")
def parent(client: Client) -> Iterator[Any]:
    """A sandbox in which a process draws numbers, and a hook that lets it start anew in every copy."""
    sandbox = client.create(timeout=600, envs={"GREETING": "hello"}, metadata={"purpose": "a"})
    sandbox.files.write("/root/worker.py", WORKER, user="root")
    sandbox.files.write("/etc/envd/restored.d/10-reseed", HOOK, user="root")
    sandbox.commands.run("chmod 755 /etc/envd/restored.d/10-reseed", user="root")
    sandbox.commands.run("python3 /root/worker.py", user="root", background=True, timeout=0)
    sandbox.commands.run(f"until bash -c '{DRAW}' >/dev/null 2>&1; do sleep 0.1; done", timeout=200)
    yield sandbox
    sandbox.kill()


def _run(sandbox: Any, command: str, **options: Any) -> str:
    return str(sandbox.commands.run(command, **options).stdout.strip())


def test_children_are_their_own(parent: Any) -> None:
    children = parent.fork(count=3)
    try:
        everyone = [parent, *children]
        assert len({each.sandbox_id for each in everyone}) == 4
        assert len({each._envd_access_token for each in everyone}) == 4
        told = "hostname; echo $E2B_SANDBOX_ID; echo $GREETING"
        for each in everyone:
            assert _run(each, told).split() == [each.sandbox_id, each.sandbox_id, "hello"]
            assert each.get_info().metadata == {"purpose": "a"}
            before = time.time()
            clock = float(_run(each, "date +%s.%N"))
            assert before - 2 <= clock <= time.time() + 2, "the clock is near the host's"
        assert len({_run(each, URANDOM) for each in everyone}) == 4
        assert len({_run(each, "cat /proc/sys/kernel/random/uuid") for each in everyone}) == 4
    finally:
        for child in children:
            child.kill()


def test_the_clock_of_a_sandbox_is_right_though_it_stood_still_for_snapshots(
    client: Client, parent: Any
) -> None:
    for _ in range(20):
        snapshot = parent.create_snapshot(name="clock")  # it stands still for some 30 ms and more
    client.sandbox_class.delete_snapshot(snapshot.snapshot_id, **client.options)
    before = time.time()
    late = before - float(_run(parent, "date +%s.%N"))
    assert late < 0.3


def test_a_root_file_system_that_was_left_frozen_keeps_no_child_from_its_name(parent: Any) -> None:
    try:
        parent.commands.run("fsfreeze -f /", user="root")
        (child,) = parent.fork(count=1)
        try:
            assert _run(child, "hostname; echo kept > ~/kept; cat ~/kept") == f"{child.sandbox_id}\nkept"
        finally:
            child.kill()
    finally:
        parent.commands.run("fsfreeze -u /", user="root")


def test_a_hook_lets_a_process_that_was_copied_draw_other_numbers(parent: Any) -> None:
    children = parent.fork(count=3)
    try:
        drawn = [_run(child, DRAW).split() for child in children]
        assert len({pid for pid, _ in drawn}) == 1, "it is the same process, copied"
        assert len({number for _, number in drawn}) == 3
        for child in children:
            assert _run(child, "tail -n 1 /run/hook.log") == child.sandbox_id
    finally:
        for child in children:
            child.kill()


def test_without_the_hook_they_would_draw_the_same(parent: Any) -> None:
    """Why there are hooks: what a process has in its memory is copied with it."""
    _run(parent, "chmod 644 /etc/envd/restored.d/10-reseed", user="root")
    children = parent.fork(count=2)
    try:
        assert len({_run(child, DRAW) for child in children}) == 1
    finally:
        _run(parent, "chmod 755 /etc/envd/restored.d/10-reseed", user="root")
        for child in children:
            child.kill()


def test_a_hook_that_hangs_or_leaves_something_behind_costs_a_bounded_time(
    client: Client, parent: Any
) -> None:
    slow = "#!/bin/sh\nsetsid sleep 4321 &\nsleep 4321\n"
    parent.files.write("/etc/envd/restored.d/20-slow", slow, user="root")
    _run(parent, "chmod 755 /etc/envd/restored.d/20-slow", user="root")
    snapshot = parent.create_snapshot().snapshot_id
    _run(parent, "rm /etc/envd/restored.d/20-slow", user="root")
    copy = client.create(snapshot, timeout=300)
    try:
        assert _run(copy, "pgrep -c -fx 'sleep 4321' || true") == "0"
        assert _run(copy, "tail -n 1 /run/hook.log") == copy.sandbox_id
    finally:
        copy.kill()
