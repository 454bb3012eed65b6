"""The command line on real VMs."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import AENV, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(180)]


class Cli:
    """Runs `aenv` against a server."""

    def __init__(self, server: Server) -> None:
        self._environment = server.environment

    def __call__(self, *arguments: str | Path, code: int = 0, stdin: str = "") -> str:
        finished = subprocess.run(
            [AENV, *arguments],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert finished.returncode == code, finished.stdout + finished.stderr
        return finished.stdout if code == 0 else finished.stdout + finished.stderr

    def json(self, *arguments: str) -> object:
        return json.loads(self("--output", "json", *arguments))

    def shell(self, typed: bytes, *arguments: str) -> bytes:
        """What an interactive command shows on a terminal of 40 rows and 100 columns."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(AENV, [str(AENV), *arguments], self._environment)  # noqa: S606 (our own command)
        shown = b""
        try:
            pty_size = b"\x28\x00\x64\x00\x00\x00\x00\x00"  # struct winsize: rows, columns, two unused
            import fcntl  # noqa: PLC0415 (the child must not run it)
            import termios  # noqa: PLC0415

            fcntl.ioctl(terminal, termios.TIOCSWINSZ, pty_size)
            end, sent = time.monotonic() + 60, False
            while time.monotonic() < end:
                if select.select([terminal], [], [], 0.2)[0]:
                    try:
                        shown += os.read(terminal, 4096)
                    except OSError:
                        break
                if b"$ " in shown and not sent:
                    os.write(terminal, typed)
                    sent = True
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)
        return shown


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


@pytest.fixture
def sandbox(cli: Cli) -> Iterator[str]:
    sandbox_id = cli("start", "base", "--detach").strip()
    yield sandbox_id
    cli("rm", sandbox_id)


def test_exec_passes_output_input_and_the_exit_code(cli: Cli, sandbox: str) -> None:
    assert cli("exec", sandbox, "python3", "-c", "print(6 * 7)") == "42\n"
    assert cli("exec", sandbox, "cat", stdin="piped\n") == "piped\n"
    assert "oh no" in cli("exec", sandbox, "echo oh no >&2; exit 3", code=3)


def test_files_go_both_ways(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "bytes").write_bytes(bytes(range(256)) * 1000)
    (folder / "a name with ä").write_text("text")
    cli("cp", folder, f"{sandbox}:/home/user/")
    cli("cp", f"{sandbox}:/home/user/data", tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "bytes").read_bytes() == bytes(range(256)) * 1000
    assert (tmp_path / "back" / "a name with ä").read_text() == "text"


def test_a_sandbox_is_paused_resumed_forked_and_listed(cli: Cli, sandbox: str) -> None:
    cli("exec", sandbox, "echo kept > file")
    cli("pause", sandbox)
    info = cli.json("info", sandbox)
    assert isinstance(info, dict)
    assert info["state"] == "paused"
    cli("resume", sandbox)
    assert cli("exec", sandbox, "cat", "file") == "kept\n"
    children = cli("fork", sandbox, "-n", "2").split()
    assert len(children) == 2
    for child in children:
        assert cli("exec", child, "cat", "file") == "kept\n"
        cli("rm", child)
    snapshot = cli("snapshot", "create", sandbox).strip()
    copy = cli("start", snapshot, "--detach").strip()
    assert cli("exec", copy, "cat", "file") == "kept\n"
    cli("rm", copy)
    cli("snapshot", "rm", snapshot)
    listed = cli.json("ls")
    assert isinstance(listed, list)
    assert sandbox in json.dumps(listed)


def test_a_shell_has_a_terminal_of_the_right_size(cli: Cli, sandbox: str) -> None:
    shown = cli.shell(b"stty size; tty; exit\n", "connect", sandbox)
    assert b"40 100" in shown
    assert b"/dev/pts/" in shown


def test_errors_are_one_clear_line(cli: Cli) -> None:
    for arguments in (["exec", "inosuchsandbox0000000", "true"], ["pause", "inosuchsandbox0000000"]):
        assert "not found" in cli(*arguments, code=1)
    assert "not found" in cli("start", "no-such-template", "-d", code=1)
