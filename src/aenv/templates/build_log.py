"""Logs of builds: live while one is under way, and kept in a file for each."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from aenv.guest.reports import LEVELS, Level
from aenv.tasks import cancel, finish

log = structlog.get_logger()

MOST_BYTES = 4 << 20
"""Of a build's log. What would be more is left out, but for warnings, errors and what the server itself says:
clients count entries, so that none that was seen may go."""

MOST_LINE = 8 << 10
"""Characters of one message."""

WRITE_SECONDS = 0.2
"""How often what is new is written to the file."""

MOST_RECENT = 2
"""Logs of builds that are over, which stay in memory: their clients go on asking until they have read all."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
"""Colours and the like, which are for a terminal."""


@dataclass(frozen=True)
class BuildLogEntry:
    """One line. `time` is in seconds since the epoch; `step` as in `aenv.templates.jobs.Reason`."""

    time: float
    level: Level
    message: str
    step: str | None = None


class BuildLog:
    """The log of a build that is under way."""

    def __init__(self, path: Path) -> None:
        self.entries: list[BuildLogEntry] = []
        self._path = path
        self._written = 0
        self._writing = asyncio.Lock()
        self._size = 0
        self._full = False

    def say(self, message: str, *, step: str | None = None, level: Level = "info") -> None:
        """Add what the server says about the build."""
        for line in message.splitlines() or [""]:
            self._add(line, step, level)

    def output(self, prefix: str, lines: Iterable[str], *, step: str) -> None:
        """Add lines of a command's output."""
        for line in lines:
            if self._size <= MOST_BYTES:
                self._add(f"{prefix}: {line}", step, "info")
            elif not self._full:
                self._full = True
                self._add("the log is too long: further output is left out", step, "warn")

    def _add(self, message: str, step: str | None, level: Level) -> None:
        clean = _CONTROL.sub("", message.encode("utf-8", "replace").decode())
        if len(clean) > MOST_LINE:
            clean = clean[:MOST_LINE] + "…"
        self.entries.append(BuildLogEntry(time.time(), level, clean, step))
        self._size += len(clean) + 64

    async def write(self) -> None:
        """Write what is new to the file; if that fails it is tried again at the next call."""
        await finish(self._write())  # what is half written and not counted would come twice

    async def _write(self) -> None:
        async with self._writing:
            await self._append()

    async def _append(self) -> None:
        new = self.entries[self._written :]
        if not new:
            return

        def append() -> None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"".join(json.dumps(vars(entry)).encode() + b"\n" for entry in new))

        try:
            await asyncio.to_thread(append)
        except OSError as error:
            log.warning("the log of a build can't be written", file=self._path.name, error=str(error))
        else:
            self._written += len(new)


class BuildLogs:
    """The logs of all builds, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._live: dict[str, BuildLog] = {}
        self._recent: dict[str, Sequence[BuildLogEntry]] = {}
        """The last ones that ended or were read."""

    @asynccontextmanager
    async def open(self, build_id: str) -> AsyncIterator[BuildLog]:
        """The log of a build for the time of the block; what is said in it is on disk a moment later."""
        live = self._live[build_id] = BuildLog(self._path(build_id))
        writer = asyncio.ensure_future(_keep_writing(live))
        try:
            yield live
        finally:
            try:
                await cancel(writer)
                await live.write()
            finally:
                self._remember(build_id, self._live.pop(build_id).entries)

    async def read(self, build_id: str) -> Sequence[BuildLogEntry]:
        """All entries so far; of a build that never began, none."""
        if (live := self._live.get(build_id)) is not None:
            return live.entries
        if (recent := self._recent.get(build_id)) is not None:
            return recent
        entries = await asyncio.to_thread(_read, self._path(build_id))
        if entries and build_id not in self._live:  # it may have begun meanwhile
            self._remember(build_id, entries)
        return entries

    def _remember(self, build_id: str, entries: Sequence[BuildLogEntry]) -> None:
        self._recent.pop(build_id, None)
        self._recent[build_id] = entries
        while len(self._recent) > MOST_RECENT:
            del self._recent[next(iter(self._recent))]

    async def forget_others(self, kept: Collection[str]) -> None:
        """Remove the files of all builds but those."""

        def remove() -> None:
            for path in self._folder.glob("*.jsonl"):
                if path.stem not in kept:
                    path.unlink(missing_ok=True)

        for forgotten in self._recent.keys() - set(kept):
            del self._recent[forgotten]
        await asyncio.to_thread(remove)

    def _path(self, build_id: str) -> Path:
        return self._folder / f"{build_id}.jsonl"


async def _keep_writing(live: BuildLog) -> None:
    while True:
        await asyncio.sleep(WRITE_SECONDS)
        await live.write()


def _read(path: Path) -> Sequence[BuildLogEntry]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    entries = []
    for line in content.splitlines():
        try:
            entries.append(BuildLogEntry(**json.loads(line)))
        except (ValueError, TypeError):  # cut off by a crash
            continue
    return entries


def at_least(entries: Sequence[BuildLogEntry], level: Level | None) -> Sequence[BuildLogEntry]:
    """Those of this level or a higher one."""
    if level is None or level == LEVELS[0]:
        return entries
    wanted = set(LEVELS[LEVELS.index(level) :])
    return [entry for entry in entries if entry.level in wanted]
