"""Steps that a cancelled caller must still see to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


async def to_the_end(work: Awaitable[T], *, undo: Callable[[T], None] | None = None) -> T:
    """Await `work`; if the caller is cancelled, wait for `work` all the same, then be cancelled.

    For bounded steps whose outcome the caller must know before it cleans up: a thread that writes into a
    folder, a command that changes the VM. `undo` releases a result that a cancelled caller can't take.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and task.exception() is None and undo is not None:
            undo(task.result())
        raise cancelled
    return task.result()


async def together(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Await both; if one fails, wait for the other before its error is raised. Each goes on `to_the_end`."""
    results = await asyncio.gather(to_the_end(first), to_the_end(second), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # the exceptions are gone
