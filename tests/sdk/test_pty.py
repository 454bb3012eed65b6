"""Terminals, through the Python SDK."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2b import NotFoundException, PtySize, SandboxException

from tests.sdk.client import Client, eventually

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]


def test_a_shell_of_the_asked_size(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox, rows=33, cols=101, envs={"MINE": "täxt"}, cwd="/tmp")
    sandbox.pty.send_stdin(
        terminal.pid, b"stty size; echo [$TERM][$LANG][$LC_ALL][$MINE][$GREETING]; tty; pwd; id -un\n"
    )
    terminal.wait_for(b"33 101")
    terminal.wait_for("[xterm-256color][C.UTF-8][C.UTF-8][täxt][hello]".encode())
    terminal.wait_for(b"/dev/pts/")
    terminal.wait_for(b"\r\n/tmp\r\n")
    terminal.wait_for(b"\r\nuser\r\n")
    assert sandbox.pty.kill(terminal.pid)
    assert not sandbox.pty.kill(terminal.pid)


def test_a_resize_is_seen_by_the_program(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox, user="root")
    sandbox.pty.send_stdin(terminal.pid, b"trap 'echo resized to $(stty size)' WINCH; id -un\n")
    terminal.wait_for(b"\rroot\r\n")
    sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=132))
    terminal.wait_for(b"resized to 50 132")
    sandbox.pty.send_stdin(terminal.pid, b"exit\n")
    eventually(lambda: terminal.pid not in [process.pid for process in sandbox.commands.list()])


def test_a_terminal_goes_on_without_its_client(client: Client, sandbox: Any) -> None:
    first = client.open_terminal(sandbox)
    sandbox.pty.send_stdin(first.pid, b"keep=something\n")
    second = client.connect_terminal(sandbox, first.pid)
    sandbox.pty.send_stdin(first.pid, b"echo [$keep]\n")
    first.wait_for(b"[something]")
    second.wait_for(b"[something]")
    if client.is_async:  # the synchronous one reads in a thread until the end
        first.handle.disconnect()
    sandbox.pty.send_stdin(first.pid, b"echo [$((6 * 7))]\n")
    second.wait_for(b"[42]")
    sandbox.pty.kill(first.pid)


def test_keys_and_raw_bytes(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox)
    sandbox.pty.send_stdin(terminal.pid, b"echo ready; sleep 1000; echo [$?]\n")
    terminal.wait_for(b"\rready\r\n")
    time.sleep(0.3)  # the shell says nothing when sleep has the terminal
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"echo [$?]\n")
    terminal.wait_for(b"[130]")
    client.stream_input(sandbox.pty, terminal.pid, [b"echo ", "strä".encode(), b"med\n"])
    terminal.wait_for("\rsträmed\r\n".encode())
    time.sleep(0.3)  # until the shell reads again
    sandbox.pty.send_stdin(terminal.pid, b"\x04")
    eventually(lambda: terminal.pid not in [process.pid for process in sandbox.commands.list()])


def test_much_output_arrives_whole(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox)
    sandbox.pty.send_stdin(terminal.pid, b'stty -echo; seq -f %09g 20000; echo e""nd\n')
    terminal.wait_for(b"end\r\n", 60)
    assert b"\r\n".join(b"%09d" % number for number in range(1, 20_001)) in terminal.output
    sandbox.pty.kill(terminal.pid)


def test_what_has_the_terminal_dies_with_it(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox)
    sandbox.pty.send_stdin(terminal.pid, b"sleep 4712 | sleep 4712\n")
    eventually(lambda: sandbox.commands.run("pgrep -c -fx 'sleep 4712' || true").stdout == "2\n")
    sandbox.pty.kill(terminal.pid)
    eventually(lambda: sandbox.commands.run("pgrep -c -fx 'sleep 4712' || true").stdout == "0\n")


def test_a_terminal_ends_at_its_timeout(client: Client, sandbox: Any) -> None:
    terminal = client.open_terminal(sandbox, timeout=2) if client.is_async else None
    if terminal is None:
        handle = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=2)
        with pytest.raises(SandboxException):
            handle.wait()
        pid = handle.pid
    else:
        pid = terminal.pid
    eventually(lambda: pid not in [process.pid for process in sandbox.commands.list()])


def test_what_is_no_terminal_is_refused(sandbox: Any) -> None:
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(999_999, PtySize(rows=1, cols=1))
    with pytest.raises(NotFoundException):
        sandbox.pty.send_stdin(999_999, b"x")
    command = sandbox.commands.run("sleep 60", background=True)
    with pytest.raises(SandboxException, match="no terminal"):
        sandbox.pty.resize(command.pid, PtySize(rows=1, cols=1))
    command.kill()
