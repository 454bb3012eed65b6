"""Command lines in the VM of a build, with their output in its log."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from aenv.errors import AenvError, NoSpace, RuntimeFailure
from aenv.guest.events import End, Stderr, Stdout
from aenv.guest.processes import ProcessStream
from aenv.sandboxes.machines import Machine
from aenv.tasks import cancel
from aenv.templates.build_log import MOST_LINE, BuildLog
from aenv.templates.context import Context

T = TypeVar("T")

ROOT: Final = "root"

SHELLS: Final = {"/bin/bash": ("-l", "-c"), "/bin/sh": ("-c",)}
"""What runs a command line, the first that there is, and its options before the line."""

_LAST_LINES: Final = 10
"""Of a command that failed, in the error."""


class StepFailed(AenvError):
    """A step of a build failed; the message says how."""


class Output:
    """Where a command's output goes: into the log, and the last of it is kept for an error."""

    def __init__(self, log: BuildLog, prefix: str, step: str) -> None:
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._log = log
        self._prefix = prefix
        self._step = step

    def write(self, kind: str, lines: list[str]) -> None:
        """Take lines of `stdout` or `stderr`."""
        self._log.output(f"{self._prefix} [{kind}]", lines, step=self._step)
        self.last.extend(line for line in lines if line.strip())

    def failure(self, command: str, code: int) -> StepFailed:
        """What is said of a command that ended with a code that isn't 0."""
        said = "".join(f"\n{line[:1000]}" for line in self.last)
        return StepFailed(f"{shortened(command)} failed with exit code {code}{':' if said else ''}{said}")


class Commands:
    """Runs command lines in one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def run(
        self,
        command: str,
        context: Context,
        output: Output | None,
        *,
        user: str | None = None,
        shell: Sequence[str] = (),
    ) -> int:
        """Run a command line to its end, for a shell if one is given; its exit code, as a shell shows it."""
        async with await self._start(command, context, user, shell) as stream:
            return await _follow(stream, output)

    @asynccontextmanager
    async def running(
        self, command: str, context: Context, output: Output
    ) -> AsyncIterator[asyncio.Future[int]]:
        """A command line that runs on; the block gets its exit code, should it end. It isn't ended after."""
        async with await self._start(command, context, None) as stream:
            ended = asyncio.ensure_future(_follow(stream, output))
            try:
                yield ended
            finally:
                with contextlib.suppress(AenvError):
                    await cancel(ended)

    async def _start(
        self, command: str, context: Context, user: str | None, shell: Sequence[str] = ()
    ) -> ProcessStream:
        program, *options = shell or await self._shell()
        return await self._machine.guest.processes.start(
            program,
            [*options, command],
            envs=context.variables,
            cwd=context.workdir,
            user=user or context.user,
        )

    async def _shell(self) -> Sequence[str]:
        for path, options in SHELLS.items():
            if await self._machine.guest.files.exists(path, user=ROOT) is not None:
                return (path, *options)
        raise StepFailed(f"the image has no shell ({' or '.join(SHELLS)}) to run a command")


async def _follow(stream: ProcessStream, output: Output | None) -> int:
    lines = {"stdout": _Lines(), "stderr": _Lines()}
    async for event in stream:
        match event:
            case Stdout(data):
                kind, new = "stdout", lines["stdout"].take(data)
            case Stderr(data):
                kind, new = "stderr", lines["stderr"].take(data)
            case End():
                for kind, each in lines.items():
                    if output is not None:
                        output.write(kind, each.rest())
                return event.shell_code
            case _:
                continue
        if output is not None:
            output.write(kind, new)
    raise RuntimeFailure("the guest agent ended a command's stream without its exit code")


class _Lines:
    """Makes lines of pieces of output. One that is too long is cut in several."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def take(self, data: bytes) -> list[str]:
        """The lines that are complete now. A carriage return begins a line anew, as progress bars do."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        while len(self._rest) > MOST_LINE:
            lines.append(self._rest[:MOST_LINE])
            self._rest = self._rest[MOST_LINE:]
        return [line.rstrip("\r").rpartition("\r")[2] for line in lines]

    def rest(self) -> list[str]:
        """What the last line end left."""
        return [self._rest] if self._rest else []


def shortened(command: str) -> str:
    """A command line that may be long, for a message."""
    first, *others = command.strip().split("\n")
    return first[:200] + ("…" if others or len(first) > 200 else "")


async def while_alive(machine: Machine, work: Coroutine[Any, Any, T]) -> T:
    """The result of work in a machine. Raises RuntimeFailure if it ends, NoSpace if it stands still."""
    doing, full = asyncio.ensure_future(work), asyncio.ensure_future(machine.instance.no_space.wait())
    try:
        waited: set[asyncio.Future[Any]] = {doing, full, machine.instance.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if machine.instance.ended.done():
            raise RuntimeFailure(f"the VM ended: {machine.instance.ended.result()}")
        if not doing.done():
            raise NoSpace("the host's disk is full: make room, then build again")
        return doing.result()
    finally:
        with contextlib.suppress(AenvError):
            await cancel(doing, full)
