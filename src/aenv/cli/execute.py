"""The command `aenv exec`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from contextlib import suppress
from typing import Annotated

import typer

from aenv.cli.access import guest, keep_alive, state_of
from aenv.cli.api import ApiClient
from aenv.cli.context import api, run
from aenv.cli.errors import CommandError, usage
from aenv.cli.options import EnvOption, SandboxArgument, UserOption, pairs
from aenv.cli.session import PtySession, need_terminal
from aenv.cli.terminal import beside, on_signals, read_input, write_output
from aenv.errors import GuestUnresponsive
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from aenv.guest.events import End, Stderr, Stdout
from aenv.guest.processes import ProcessStream, SignalName

TIMED_OUT = 124
"""Exit code of a command that was ended at its --timeout, as of timeout(1)."""
_SHELL_SYNTAX = re.compile(r"[\s;&|<>$`*?(){}\\'\"~]")


def execute(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="The command.", show_default=False)],
    *,
    user: UserOption = None,
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", metavar="PATH", help="Working directory.")] = None,
    env: EnvOption = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass standard input on even from a terminal.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Run it on a terminal of its own.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECS", help="Kill the command after so long.")
    ] = None,
) -> None:
    """Run a command in a sandbox; its output streams, its exit code is passed on.

    Options belong before the sandbox's id; all after it is the command.
    One argument with spaces or shell syntax is a line for `bash -l -c`;
    anything else runs as it is, without a shell. Standard input is passed on
    if it is a pipe or a file. Ctrl-C ends the command, a second one kills it,
    a third gives up. After --timeout the exit code is 124. A paused sandbox
    is resumed.

    \b
    aenv exec ID uname -a
    aenv exec ID 'cd /srv && ls | wc -l'
    tar c . | aenv exec ID tar x -C /srv
    aenv exec -t ID top
    """
    argv = shell_line(command)
    envs = pairs(env, "--env")
    if tty:
        need_terminal("exec -t")

    async def work() -> int:
        async with api(ctx) as client, guest(client, sandbox, user=user) as envd:
            if tty:
                session = PtySession(client, sandbox, envd)
                return await session.run([argv], envs=envs, cwd=cwd, timeout=timeout)
            takes_input = interactive or _is_piped(sys.stdin.fileno())
            try:
                stream = await envd.processes.start(
                    argv[0], argv[1:], envs=envs, cwd=cwd, stdin=takes_input, timeout=timeout
                )
            except GuestError as error:
                raise not_started(argv[0], error) from error
            async with stream, beside(keep_alive(client, sandbox)):
                try:
                    return await Execution(envd, stream).run(takes_input=takes_input)
                except (GuestUnresponsive, GuestError) as error:
                    raise await explain(client, sandbox, error) from error

    raise typer.Exit(run(work()))


def shell_line(command: list[str]) -> list[str]:
    """The argument vector for a command as typed: a single one with shell syntax goes to bash."""
    if command[:1] == ["--"]:
        command = command[1:]
    if not command or not command[0]:
        raise usage("no command given")
    if len(command) == 1 and _SHELL_SYNTAX.search(command[0]):
        return ["/bin/bash", "-l", "-c", command[0]]
    return command


def not_started(command: str, error: GuestError) -> CommandError:
    """Why nothing ran, with the exit codes that shells have for it."""
    for words, text, code in (
        ("executable file not found", "command not found in the sandbox", 127),
        ("no such file or directory", "no such file in the sandbox", 127),
        ("permission denied", "not executable in the sandbox", 126),
    ):
        if words in error.message:
            return CommandError(f"{command}: {text}", exit_code=code)
    return CommandError(error.message)


class Execution:
    """One command that runs in a sandbox, connected to our standard streams."""

    def __init__(self, envd: EnvdClient, stream: ProcessStream) -> None:
        self._envd = envd
        self._stream = stream
        self._interrupts = 0
        self._interrupted = asyncio.Event()
        self._task = asyncio.current_task()

    async def run(self, *, takes_input: bool) -> int:
        """Pass everything on until the command ends; its exit code."""
        works = [self._pass_interrupts()]
        if takes_input:
            works.append(self._pass_input(sys.stdin.fileno()))
        with on_signals({signal.SIGINT: self._interrupt, signal.SIGTERM: self._interrupt}):
            async with beside(*works):
                end = await self._pass_output()
        if self._interrupts and end.exit_code < 0:
            return 128 + signal.SIGINT
        return end.shell_code

    async def _pass_output(self) -> End:
        try:
            async for event in self._stream:
                match event:
                    case Stdout(data):
                        await write_output(sys.stdout.fileno(), data)
                    case Stderr(data):
                        await write_output(sys.stderr.fileno(), data)
                    case End():
                        return event
                    case _:
                        pass
        except BrokenPipeError:
            # As SIGPIPE would end it if it ran here.
            await self._send("SIGTERM")
            raise
        raise CommandError("the sandbox ended the command's output without its exit code")

    async def _pass_input(self, fd: int) -> None:
        # If the command ended or closed its input, its output says how it went.
        with suppress(GuestError, GuestUnresponsive):
            while data := await read_input(fd):
                await self._envd.processes.send_input(self._stream.pid, data)
            await self._envd.processes.close_stdin(self._stream.pid)

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._interrupted.set()
        if self._interrupts > 2 and self._task is not None:
            self._task.cancel()

    async def _pass_interrupts(self) -> None:
        while True:
            await self._interrupted.wait()
            self._interrupted.clear()
            await self._send("SIGTERM" if self._interrupts == 1 else "SIGKILL")

    async def _send(self, name: SignalName) -> None:
        # If it ended already, or the sandbox can't be reached, the output's stream says so.
        with suppress(GuestError, GuestUnresponsive):
            await self._envd.processes.signal(self._stream.pid, name)


async def explain(api: ApiClient, sandbox: str, error: GuestError | GuestUnresponsive) -> CommandError:
    """What a stream's failure means to the user: a deadline, or the sandbox's own end."""
    if isinstance(error, GuestError) and error.code is Code.DEADLINE_EXCEEDED:
        return CommandError("the command didn't end within its --timeout and was killed", exit_code=TIMED_OUT)
    match await state_of(api, sandbox):
        case "paused":
            return CommandError(
                f"{sandbox} was paused", hint=f"The command goes on after `aenv resume {sandbox}`."
            )
        case None:
            return CommandError(f"{sandbox} was deleted while the command ran")
        case _:
            return CommandError(error.message)


def _is_piped(fd: int) -> bool:
    """Whether standard input is a pipe, a file or a socket: something with an end."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
