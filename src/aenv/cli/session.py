"""A terminal session: a process on a PTY in a sandbox, shown on the local terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from aenv.cli.access import keep_alive, state_of
from aenv.cli.api import ApiClient
from aenv.cli.errors import CommandError, say, usage
from aenv.cli.terminal import beside, on_signals, raw_mode, read_input, window_size, write_output
from aenv.errors import AenvError, GuestUnresponsive
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from aenv.guest.events import End, Pty
from aenv.guest.processes import ProcessStream

PAUSED = 130
"""Exit code of a session that a pause ended."""
SHELLS = [["/bin/bash", "-i", "-l"], ["/bin/sh", "-i"]]
"""Shells to try, in this order."""

_RECONNECTS = 5
_RECONNECT_DELAY = 0.2


def need_terminal(command: str) -> None:
    """Raise CommandError unless standard input and output are a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage(
            f"`aenv {command}` needs a terminal",
            hint="Use `aenv start -d` and `aenv exec ID CMD...` in scripts.",
        )


class PtySession:
    """One session. Standard input and output must be a terminal."""

    def __init__(self, api: ApiClient, sandbox_id: str, envd: EnvdClient) -> None:
        self._api = api
        self._sandbox = sandbox_id
        self._envd = envd
        self._stdin = sys.stdin.fileno()
        self._stdout = sys.stdout.fileno()
        self._resized = asyncio.Event()

    async def run(
        self,
        choices: Sequence[list[str]],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run the first of `choices` (argument vectors) that exists, until it ends; its exit code."""
        stream = await self._start(choices, envs or {}, cwd, timeout)
        pid = stream.pid
        try:
            with on_signals(self._handlers()), raw_mode(self._stdin):
                async with beside(
                    self._pass_input(pid), self._pass_size(pid), keep_alive(self._api, self._sandbox)
                ):
                    return await self._follow(stream)
        except asyncio.CancelledError:
            await self._kill(pid)
            raise

    def _handlers(self) -> dict[int, Callable[[], object]]:
        """Without those for the last two the terminal would stay raw, and the shell in the sandbox."""
        task = asyncio.current_task()
        handlers: dict[int, Callable[[], object]] = {signal.SIGWINCH: self._resized.set}
        if task is not None:
            handlers |= {signal.SIGTERM: task.cancel, signal.SIGHUP: task.cancel}
        return handlers

    async def _start(
        self, choices: Sequence[list[str]], envs: Mapping[str, str], cwd: str | None, timeout: float | None
    ) -> ProcessStream:
        terminal = {
            "TERM": os.environ.get("TERM") or "xterm-256color",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        for index, argv in enumerate(choices):
            try:
                return await self._envd.processes.start(
                    argv[0],
                    argv[1:],
                    envs={**terminal, **envs},
                    cwd=cwd,
                    pty=window_size(self._stdout),
                    timeout=timeout,
                )
            except GuestError as error:
                missing = error.code in {Code.NOT_FOUND, Code.INVALID_ARGUMENT}
                if not missing or index == len(choices) - 1:
                    raise
        raise ValueError("no command to run")

    async def _follow(self, stream: ProcessStream) -> int:
        """Show the output until the end, attaching again if the connection breaks."""
        pid = stream.pid
        while True:
            try:
                async with stream:
                    return await self._show(stream)
            except GuestUnresponsive as error:
                stream = await self._attach(pid, error)
            except GuestError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
                stream = await self._attach(pid, error)

    async def _show(self, stream: ProcessStream) -> int:
        async for event in stream:
            match event:
                case Pty(data):
                    await write_output(self._stdout, data)
                case End():
                    return event.shell_code
                case _:
                    pass
        raise CommandError("the sandbox ended the session without an exit code")

    async def _attach(self, pid: int, broken: AenvError) -> ProcessStream:
        """Listen again to a session whose connection broke, if its sandbox still runs."""
        for attempt in range(_RECONNECTS):
            match await state_of(self._api, self._sandbox):
                case "paused":
                    raise CommandError(
                        f"{self._sandbox} was paused",
                        hint=f"`aenv connect {self._sandbox}` resumes it.",
                        exit_code=PAUSED,
                    )
                case None:
                    raise CommandError(f"{self._sandbox} was deleted")
                case _:
                    pass
            try:
                return await self._envd.processes.connect(pid)
            except GuestError as error:
                if error.code is Code.NOT_FOUND:
                    raise CommandError("the session ended while the connection was broken") from error
            except GuestUnresponsive:
                pass
            await asyncio.sleep(_RECONNECT_DELAY * 2**attempt)
        raise broken

    async def _pass_input(self, pid: int) -> None:
        while data := await read_input(self._stdin):
            try:
                await self._envd.processes.send_input(pid, data, pty=True)
            except (GuestError, GuestUnresponsive):
                continue  # The output's stream finds out what is wrong.

    async def _pass_size(self, pid: int) -> None:
        while True:
            await self._resized.wait()
            self._resized.clear()
            try:
                await self._envd.processes.resize(pid, *window_size(self._stdout))
            except (GuestError, GuestUnresponsive):
                continue

    async def _kill(self, pid: int) -> None:
        """A session without its terminal ends, as under ssh. A sandbox that can't be reached keeps it."""
        try:
            async with asyncio.timeout(2.0):
                await self._envd.processes.signal(pid, "SIGKILL")
        except (AenvError, TimeoutError):
            return


async def open_shell(api: ApiClient, sandbox_id: str, envd: EnvdClient) -> int:
    """A login shell; says afterwards that the sandbox is still there."""
    code = await PtySession(api, sandbox_id, envd).run(SHELLS)
    say(f"{sandbox_id} goes on; come back with `aenv connect`, end it with `aenv rm`")
    return code
