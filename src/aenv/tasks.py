"""Small asyncio helpers: work that runs to its end, and locks by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog

from aenv import unexpected
from aenv.errors import AenvError

log = structlog.get_logger()

T = TypeVar("T")
U = TypeVar("U")


async def finish(work: Awaitable[T], *, undo: Callable[[T], None] | None = None) -> T:
    """Run `work` to its end, however often the caller is cancelled; the cancellation is raised afterwards.

    For bounded work whose outcome must be known before anything is cleaned up: a thread that writes into a
    folder, a command that changes a VM. `undo` releases a result that a cancelled caller can't take.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    _note_outcome(task, (AenvError, OSError))
    if undo is not None and not task.cancelled() and task.exception() is None:
        undo(task.result())
    raise cancelled


async def together(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Await both; if one fails, wait for the other before its error is raised. Each is run by `finish`."""
    results = await asyncio.gather(finish(first), finish(second), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # the exceptions are gone


def _note_outcome(task: asyncio.Future[Any], foreseen: tuple[type[Exception], ...] = (AenvError,)) -> None:
    """Log a failure that perhaps no caller is left to hear of; one that nobody foresaw, in full."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, foreseen):
        log.debug("work failed", error=repr(error))
    else:
        unexpected.note("tasks", "work failed unforeseen", error)


class TaskSet:
    """Owns tasks that outlive the request that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`. The task must handle its own errors, or be awaited by someone."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _note_outcome(task)

    async def drain(self) -> None:
        """Wait for every task, those started meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Meeting:
    """Lets each of `count` members wait until the others are as far as it is, or will never be."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._all = asyncio.Event()

    @contextmanager
    def attend(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Be a member in the block, which gets what to call to wait; to leave it without is not to come."""
        counted = False

        def count() -> None:
            nonlocal counted
            if not counted:
                counted = True
                self._missing -= 1
                if self._missing <= 0:
                    self._all.set()

        async def meet() -> None:
            count()
            await self._all.wait()

        try:
            yield meet
        finally:
            count()


class KeyedLocks:
    """A fair lock per key that exists only while someone holds or awaits it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of `key`; waiters get it in the order in which they came."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, even if the caller is cancelled or one of them failed.

    The first failure that one ended with is raised then, others are logged.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await finish(asyncio.wait(tasks))
    failed = [task for task in tasks if not task.cancelled() and task.exception() is not None]
    for task in failed[1:]:
        _note_outcome(task)
    if failed:
        failed[0].result()
