"""Collects what guests report, and answers for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from aenv import unexpected
from aenv.errors import AenvError
from aenv.guest.client import EnvdClient
from aenv.guest.reports import JournalEntry, JournalPage, Level
from aenv.tasks import TaskSet, finish
from aenv.telemetry.history import Histories, Sample
from aenv.telemetry.logs import HOST, LogEntry, LogFile, Position, rollback_entry

log = structlog.get_logger()

GUEST_SECONDS = 2.0
"""How long one guest may keep us waiting."""

LAST_LOOK_SECONDS = 0.5
"""How long a guest that is about to stop may take to hand over its log."""

AT_ONCE = 64
"""Guests asked at a time by the regular look at all of them."""

MOST_PAGES = 12
"""Pages of a journal taken at a time: more than all that one holds."""

FRESH_SECONDS = 1.0
"""A sample younger than this is never taken again on demand."""

Work = Callable[[str, EnvdClient], Coroutine[Any, Any, None]]
"""Something to do with the guest of the sandbox with that id."""


class Telemetry:
    """Metrics and logs of all sandboxes of a node.

    It asks only guests that run and may have traffic, never keeps one from being paused, and a guest that
    answers nonsense or nothing costs at most `GUEST_SECONDS`.
    """

    def __init__(self, folder: Path, interval: float) -> None:
        self._folder = folder
        self._interval = interval
        self._guests: Callable[[], Mapping[str, EnvdClient]] = dict
        self._histories = Histories()
        self._files: dict[str, LogFile] = {}
        self._tasks = TaskSet()
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}

    def watch(self, guests: Callable[[], Mapping[str, EnvdClient]]) -> None:
        """Set where the sandboxes that run, and the clients of their guests, are found."""
        self._guests = guests

    async def start(self, sandbox_ids: Collection[str]) -> None:
        """Find the logs of these sandboxes and delete all others. Raises OSError."""
        self._files = {each: self._file(each) for each in sandbox_ids}
        await asyncio.to_thread(_sweep, self._folder, frozenset(sandbox_ids))

    async def close(self) -> None:
        """Write what is left to write."""
        await self._tasks.drain()

    async def run(self) -> None:
        """Collect from all that run, every interval, until cancelled."""
        if not self._interval:
            return
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await asyncio.gather(*(self._look_at(sandbox_id) for sandbox_id in self._guests()))
            self._histories.prune(time.time())
            await asyncio.sleep(max(0.0, begun + self._interval - loop.time()))

    async def _look_at(self, sandbox_id: str) -> None:
        async with self._asking:
            await self._joined("metrics", sandbox_id, self._sample)
            await self._joined("logs", sandbox_id, self._collect)

    def admit(self, sandbox_id: str) -> None:
        """Keep a log for a sandbox from now on. Idempotent."""
        if sandbox_id not in self._files:
            self._files[sandbox_id] = self._file(sandbox_id)

    def record(self, sandbox_id: str, event: str, message: str, **fields: str) -> None:
        """Log what was done to a sandbox, unless it is gone."""
        if (file := self._files.get(sandbox_id)) is None:
            return
        entry = LogEntry(time.time(), "info", HOST, message, {"event": event, **fields})
        self._tasks.start(self._write(file, [entry]))

    def rolled_back(self, sandbox_id: str, began: float, snapshot: str) -> None:
        """Log that a sandbox was put back at time `began`: its guest's journal is an earlier one again."""
        if (file := self._files.get(sandbox_id)) is not None:
            entry = rollback_entry(began, snapshot)
            self._tasks.start(self._write(file, [entry]))

    def last_look(self, sandbox_id: str) -> Coroutine[Any, Any, None]:
        """Begin to collect the log of a guest that is about to stop.

        What is returned is to be awaited before it stops: it waits for the log, but not for long, and then
        gives up what else the guest is asked.
        """
        return self._end_looking(sandbox_id, self._ask("logs", sandbox_id, self._collect))

    async def _end_looking(self, sandbox_id: str, collecting: asyncio.Task[None] | None) -> None:
        if collecting is not None:
            await asyncio.wait([collecting], timeout=LAST_LOOK_SECONDS)
        await self.leave(sandbox_id)

    async def leave(self, sandbox_id: str) -> None:
        """Give up what is being asked of a guest whose VM is about to stop, and its client to close."""
        tasks = [task for (_, each), task in self._under_way.items() if each == sandbox_id]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def forget(self, sandbox_id: str) -> None:
        """Drop everything about a sandbox that is no more."""
        self._histories.drop(sandbox_id)
        if (file := self._files.pop(sandbox_id, None)) is not None:
            self._tasks.start(_remove(file))

    async def metrics(self, sandbox_id: str, start: int | None, end: int | None) -> list[Sample]:
        """Samples of the last hour, oldest first, within bounds in whole seconds since the epoch."""
        await self._refresh(sandbox_id)
        return self._histories.between(sandbox_id, start, end)

    async def latest(self, sandbox_ids: Collection[str]) -> dict[str, Sample]:
        """The newest sample of each that has one."""
        await asyncio.gather(*(self._refresh(sandbox_id) for sandbox_id in sandbox_ids))
        found = {sandbox_id: self._histories.latest(sandbox_id) for sandbox_id in sandbox_ids}
        return {sandbox_id: sample for sandbox_id, sample in found.items() if sample is not None}

    async def logs(self, sandbox_id: str) -> list[LogEntry]:
        """All that is known to have happened, oldest first; a guest that runs is asked for news."""
        await self._joined("logs", sandbox_id, self._collect)
        file = self._files.get(sandbox_id)
        return [] if file is None else await asyncio.to_thread(file.read)

    async def _refresh(self, sandbox_id: str) -> None:
        """Take a sample at once if there is none that a sampler would have taken."""
        newest = self._histories.latest(sandbox_id)
        if newest is None or time.time() - newest.time > max(FRESH_SECONDS, 2 * self._interval):
            await self._joined("metrics", sandbox_id, self._sample)

    async def _joined(self, what: str, sandbox_id: str, work: Work) -> None:
        """Do `work` with a guest unless it is under way already; then wait for that. Failures are logged."""
        if (task := self._ask(what, sandbox_id, work)) is not None:
            await asyncio.wait([task])

    def _ask(self, what: str, sandbox_id: str, work: Work) -> asyncio.Task[None] | None:
        """The task that does `work` with a guest, perhaps since before; None if there is no guest to ask."""
        key = (what, sandbox_id)
        if (task := self._under_way.get(key)) is None:
            if (guest := self._guests().get(sandbox_id)) is None:
                return None
            task = self._tasks.start(self._bounded(what, sandbox_id, work, guest))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _bounded(self, what: str, sandbox_id: str, work: Work, guest: EnvdClient) -> None:
        try:
            async with asyncio.timeout(GUEST_SECONDS):
                await work(sandbox_id, guest)
        except asyncio.CancelledError:
            # Only `leave` cancels; who waits for this task isn't cancelled by that.
            log.debug("a guest is left alone", what=what, sandbox=sandbox_id)
        except (AenvError, TimeoutError, OSError) as error:
            log.debug("a guest can't be asked", what=what, sandbox=sandbox_id, error=repr(error))
        except Exception as error:  # noqa: BLE001 -- noted in full
            unexpected.note("guests", "unforeseen answer of a guest", error, what=what, sandbox=sandbox_id)

    async def _sample(self, sandbox_id: str, guest: EnvdClient) -> None:
        metrics = await guest.metrics(timeout=GUEST_SECONDS)
        if sandbox_id in self._files:  # it may have been killed meanwhile
            self._histories.add(sandbox_id, Sample.of(metrics, time.time()))

    async def _collect(self, sandbox_id: str, guest: EnvdClient) -> None:
        file = self._files.get(sandbox_id)
        if file is None:
            return
        async with file.lock:
            position = await finish(asyncio.to_thread(file.position))
            for _ in range(MOST_PAGES):
                page = await guest.logs(position.journal, position.sequence, timeout=GUEST_SECONDS)
                news = _news(page, position)
                entries = _entries(page, news, position)
                await finish(asyncio.to_thread(file.append, entries))  # a thread can't be cancelled
                if not (page.more and news):
                    return
                position = Position(page.journal, news[-1].sequence, position.since)

    async def _write(self, file: LogFile, entries: Sequence[LogEntry]) -> None:
        try:
            async with file.lock:
                await asyncio.to_thread(file.append, entries)
        except OSError as error:
            log.warning("a sandbox's log can't be written", error=repr(error))

    def _file(self, sandbox_id: str) -> LogFile:
        return LogFile(self._folder / f"{sandbox_id}.jsonl")


def _news(page: JournalPage, known: Position) -> list[JournalEntry]:
    """What of a page is beyond the known position."""
    same = page.journal == known.journal
    return [entry for entry in page.entries if not same or entry.sequence > known.sequence]


def _entries(page: JournalPage, news: Sequence[JournalEntry], known: Position) -> list[LogEntry]:
    """Log entries for news, and before them a word about those that the guest dropped uncollected."""
    entries = [LogEntry.of_journal(entry, page.journal) for entry in news if entry.time >= known.since]
    missed = news[0].sequence - known.sequence - 1 if news and page.journal == known.journal else 0
    if missed and entries:
        level: Level = "warn"
        message = f"{missed} entries are missing: there were more than the guest keeps"
        entries.insert(0, LogEntry(entries[0].time, level, "envd", message, {"event": "missing"}))
    return entries


async def _remove(file: LogFile) -> None:
    file.removed = True  # at once: what waits for the lock writes nothing any more
    try:
        async with file.lock:
            await asyncio.to_thread(file.remove)
    except OSError as error:
        log.warning("a sandbox's log can't be removed", error=repr(error))


def _sweep(folder: Path, sandbox_ids: Collection[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix != ".jsonl" or path.stem not in sandbox_ids:
            path.unlink(missing_ok=True)
