"""Shells on a real terminal pair, with the real envd behind them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aenv.guest.client import EnvdClient
from tests.unit.cli.support import TOKEN, Cli, ControlPlane


class Terminal:
    """A command on a terminal, and whoever sits before it."""

    def __init__(self, master: int, slave: int, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen = b""
        self._master = master
        self._slave = slave

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def resize(self, cols: int, rows: int) -> None:
        set_size(self._master, cols, rows)
        # The kernel tells only the terminal's own foreground group; the command isn't a session leader.
        self.process.send_signal(signal.SIGWINCH)

    async def type(self, text: str) -> None:
        await asyncio.to_thread(os.write, self._master, text.encode())

    async def look(self) -> None:
        """Take what is shown now, after a moment."""
        await asyncio.sleep(0.01)
        with suppress(BlockingIOError):
            self.seen += os.read(self._master, 65536)

    async def until(self, text: str) -> None:
        """Wait until the text was shown; what was shown before it is forgotten."""
        deadline = time.monotonic() + 20
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} was never shown: {self.seen!r}"
            await self.look()
        self.seen = self.seen.partition(text.encode())[2]

    async def ended(self) -> int:
        """The exit code; what is shown meanwhile is kept."""
        deadline = time.monotonic() + 20
        while self.process.returncode is None:
            assert time.monotonic() < deadline, f"it doesn't end: {self.seen!r}"
            await asyncio.sleep(0.01)
        await self.look()
        return self.process.returncode


def set_size(fd: int, cols: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


@asynccontextmanager
async def on_terminal(cli: Cli, *arguments: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    set_size(slave, 100, 40)
    process = await cli.start(*arguments, stdin=slave, stdout=slave, stderr=slave)
    try:
        yield Terminal(master, slave, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        os.close(slave)


async def running(control: ControlPlane) -> int:
    async with EnvdClient(control.envd_url, token=TOKEN) as envd:
        return len(await envd.processes.list())


async def eventually_idle(control: ControlPlane) -> None:
    deadline = time.monotonic() + 10
    while await running(control):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_shell_from_start_to_exit(cli: Cli, control: ControlPlane) -> None:
    async with on_terminal(cli, "start", "-u", "nobody", "base") as terminal:
        before = terminal.modes
        await terminal.until("Started sandbox i9")
        await terminal.type("stty size; echo $TERM $((6*7))\n")
        await terminal.until("40 100")
        await terminal.until("xterm 42")
        assert terminal.modes != before
        terminal.resize(132, 50)
        await terminal.type("sleep 0.2; stty size\n")
        await terminal.until("50 132")
        await terminal.type("exit 7\n")
        assert await terminal.ended() == 7
        assert b"i9 goes on" in terminal.seen
        assert terminal.modes == before
    assert control.states["i9"] == "running"
    assert ("POST /sandboxes/i9/refreshes", {"duration": 180}) in control.seen
    await eventually_idle(control)


async def test_control_keys_go_to_the_sandbox(cli: Cli) -> None:
    # A login shell that is still starting could swallow the interrupt: it is sent once the program is up.
    program = ("sh", "-c", "echo up; exec cat")
    async with on_terminal(cli, "exec", "-t", "-u", "nobody", "-w", "/", "i1", *program) as terminal:
        await terminal.until("up")
        await terminal.type("hello\n")
        await terminal.until("hello\r\nhello")
        await terminal.type("\x03")
        assert await terminal.ended() == 130


async def test_connect_resumes(cli: Cli, control: ControlPlane) -> None:
    async with on_terminal(cli, "connect", "-u", "nobody", "i2") as terminal:
        await terminal.until("i2 is paused: resuming it")
        await terminal.type("echo in $((1+1))\n")
        await terminal.until("in 2")
        await terminal.type("exit\n")
        assert await terminal.ended() == 0
    assert control.states["i2"] == "running"


async def test_a_broken_connection_is_made_again(cli: Cli, control: ControlPlane) -> None:
    async with on_terminal(cli, "cn", "-u", "nobody", "i1") as terminal:
        await terminal.type("A=kept; echo set $((2+1))\n")
        await terminal.until("set 3")
        control.cut.set()
        control.cut = asyncio.Event()
        deadline = time.monotonic() + 20
        # What is shown while nobody listens is lost, so the question is put again.
        while b"kept\r\n" not in terminal.seen:
            assert time.monotonic() < deadline, terminal.seen
            await terminal.type("echo $A\n")
            for _ in range(20):
                await terminal.look()
        await terminal.type("exit\n")
        assert await terminal.ended() == 0


async def test_a_pause_ends_the_session(cli: Cli, control: ControlPlane) -> None:
    async with on_terminal(cli, "connect", "-u", "nobody", "i1") as terminal:
        before = terminal.modes
        await terminal.type("echo in $((1+1))\n")
        await terminal.until("in 2")
        control.states["i1"] = "paused"
        control.cut.set()
        assert await terminal.ended() == 130
        assert b"error: i1 was paused" in terminal.seen
        assert terminal.modes == before
    assert control.states["i1"] == "paused"


async def test_a_hang_up_ends_the_shell(cli: Cli, control: ControlPlane) -> None:
    async with on_terminal(cli, "connect", "-u", "nobody", "i1") as terminal:
        before = terminal.modes
        await terminal.type("echo in $((1+1))\n")
        await terminal.until("in 2")
        terminal.process.send_signal(signal.SIGTERM)
        assert await terminal.ended() == 130
        assert terminal.modes == before
    await eventually_idle(control)


async def test_an_unknown_template(cli: Cli) -> None:
    async with on_terminal(cli, "start", "nosuch") as terminal:
        assert await terminal.ended() == 1
        assert b"error: template 'nosuch' was not found" in terminal.seen
