"""Long-running host commands as owned subprocesses: output as progress, group ended on cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aenv.errors import HostNotReady
from aenv.images.requirements import search_path

_TIED_TO_THIS_PROCESS = ("setpriv", "--pdeathsig", "KILL")
_OWN_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONFINED = (*_TIED_TO_THIS_PROCESS, *_OWN_NAMESPACES)
_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL: mmdebstrap removes its files in this time."""
_KEPT_LINES = 15
_LINE_LIMIT = 1 << 20


async def run(
    argv: Sequence[str | Path],
    *,
    on_line: Callable[[str], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    confined: bool = False,
) -> str:
    """Run `argv` to its end and return its standard output.

    Lines of standard error go to `on_line` as they come. `env` adds to the environment; messages are in
    English. The command leads a process group of its own, which is ended if this coroutine is cancelled.
    `confined`, for commands that mount (needs root): the mounts never show on the host, and all of it ends
    with this program, even if that is killed.

    Raises HostNotReady with the last lines of its output if the command can't start or exits non-zero.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": search_path(), **(env or {})}
    name = Path(argv[0]).name
    try:
        process = await asyncio.create_subprocess_exec(
            *(_CONFINED if confined else ()),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
    except OSError as error:
        raise HostNotReady(f"{name} could not be started: {error}") from error
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - asked for above
        output, _ = await asyncio.gather(process.stdout.read(), _follow(process.stderr, last, on_line))
        code = await process.wait()
    except BaseException:
        await _end_group(process)
        raise
    text = output.decode(errors="replace")
    if code != 0:
        said = "\n".join(last) or text[-2000:].strip()
        raise HostNotReady(f"{name} failed with exit status {code}:\n{said}")
    return text


async def _follow(
    stream: asyncio.StreamReader, last: deque[str], on_line: Callable[[str], None] | None
) -> None:
    async for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if line:
            last.append(line)
            if on_line is not None:
                on_line(line)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ask the group to stop, then make it; returns when its leader is gone, whatever else is cancelled."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
            return
