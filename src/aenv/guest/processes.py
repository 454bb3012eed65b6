"""Processes in a guest: envd's service `process.Process`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from aenv.errors import GuestUnresponsive, RuntimeFailure
from aenv.guest.connect import MessageStream
from aenv.guest.events import End, Event, Start, Stderr, Stdout, parse_event

if TYPE_CHECKING:
    from aenv.guest.client import EnvdClient

START_TIMEOUT = 30.0
"""Longest wait for a process's first event, seconds."""
GRACE = 10.0
"""How much later than its own deadline a process may be reported ended, seconds."""

SignalName = Literal["SIGTERM", "SIGKILL"]


@dataclass(frozen=True)
class ProcessInfo:
    """One running process that was started through envd."""

    pid: int
    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    tag: str | None = None


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind. `exit_code` is -1 if a signal ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class ProcessStream:
    """The events of one process, from now until its end.

    An async iterator, and an async context manager that detaches at its end. The process itself goes
    on when nobody listens.
    """

    def __init__(self, messages: MessageStream, pid: int) -> None:
        self.pid = pid
        self._messages = messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while (message := await self._messages.next()) is not None:
            event = parse_event(message)
            if event is not None:
                return event
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach. The process goes on. Idempotent."""
        self._messages.close()


class Processes:
    """`EnvdClient.processes`. Every method raises GuestError, GuestUnresponsive or RuntimeFailure."""

    def __init__(self, client: EnvdClient) -> None:
        self._client = client

    async def start(
        self,
        cmd: str,
        args: Sequence[str] = (),
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        pty: tuple[int, int] | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessStream:
        """Start `cmd` with `args` (no shell in between).

        `pty` is (columns, rows) for a process on a terminal. After `timeout` seconds envd kills the
        process and the stream raises GuestError with the code `deadline_exceeded`.
        """
        process: dict[str, Any] = {"cmd": cmd, "args": list(args), "envs": dict(envs or {})}
        if cwd is not None:
            process["cwd"] = cwd
        message: dict[str, Any] = {"process": process, "stdin": stdin}
        if pty is not None:
            message["pty"] = {"size": {"cols": pty[0], "rows": pty[1]}}
        return await self._attach("process.Process/Start", message, user, timeout)

    async def connect(self, pid: int) -> ProcessStream:
        """Listen to a running process; output before this call isn't repeated."""
        return await self._attach("process.Process/Connect", {"process": {"pid": pid}})

    async def _attach(
        self, procedure: str, message: dict[str, Any], user: str | None = None, deadline: float | None = None
    ) -> ProcessStream:
        """Open the stream and take its first event, which must say that the process runs."""
        try:
            async with asyncio.timeout(START_TIMEOUT):
                messages = await self._client.stream(procedure, message, user=user, deadline=deadline)
                try:
                    return ProcessStream(messages, _started(await messages.next()).pid)
                except BaseException:
                    messages.close()
                    raise
        except TimeoutError:
            raise GuestUnresponsive(f"no process started within {START_TIMEOUT:.0f} s") from None

    async def list(self) -> list[ProcessInfo]:
        """All running processes that were started through envd."""
        answer = await self._client.call("process.Process/List", {})
        try:
            return [_info(fields) for fields in answer.get("processes", [])]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RuntimeFailure("the guest agent sent a list of processes that can't be read") from error

    async def send_input(self, pid: int, data: bytes, *, pty: bool = False) -> None:
        """Write to the process's terminal (`pty`) or standard input; waits until it took the bytes."""
        given = {"pty" if pty else "stdin": base64.b64encode(data).decode()}
        await self._client.call("process.Process/SendInput", {"process": {"pid": pid}, "input": given})

    async def close_stdin(self, pid: int) -> None:
        """Let the process see the end of its standard input."""
        await self._client.call("process.Process/CloseStdin", {"process": {"pid": pid}})

    async def resize(self, pid: int, cols: int, rows: int) -> None:
        """Set the size of the process's terminal."""
        size = {"size": {"cols": cols, "rows": rows}}
        await self._client.call("process.Process/Update", {"process": {"pid": pid}, "pty": size})

    async def signal(self, pid: int, signal: SignalName) -> None:
        """Send a signal; the protocol knows these two."""
        message = {"process": {"pid": pid}, "signal": f"SIGNAL_{signal}"}
        await self._client.call("process.Process/SendSignal", message)

    async def run(
        self,
        command: str,
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float = 60.0,
    ) -> CommandResult:
        """Run a shell command line (`bash -l -c`) to its end and collect its output in memory.

        Kills it after `timeout` seconds and raises GuestError (`deadline_exceeded`).
        """
        out, err = bytearray(), bytearray()
        argv = ["-l", "-c", command]
        try:
            async with (
                asyncio.timeout(timeout + GRACE),
                await self.start("/bin/bash", argv, envs=envs, cwd=cwd, user=user, timeout=timeout) as stream,
            ):
                async for event in stream:
                    match event:
                        case Stdout(data):
                            out += data
                        case Stderr(data):
                            err += data
                        case End(exit_code=code):
                            return CommandResult(code, bytes(out), bytes(err))
                        case _:
                            pass
        except TimeoutError:
            raise GuestUnresponsive(
                f"a command with a deadline of {timeout} s was never reported ended"
            ) from None
        raise RuntimeFailure("the guest agent ended a command's stream without its exit code")


def _started(message: dict[str, Any] | None) -> Start:
    event = parse_event(message) if message is not None else None
    if not isinstance(event, Start):
        raise RuntimeFailure("the guest agent didn't say that the process started")
    return event


def _info(fields: dict[str, Any]) -> ProcessInfo:
    config = fields.get("config", {})
    return ProcessInfo(
        pid=int(fields["pid"]),
        command=config.get("cmd", ""),
        args=tuple(config.get("args", [])),
        envs=dict(config.get("envs", {})),
        cwd=config.get("cwd"),
        tag=fields.get("tag"),
    )
