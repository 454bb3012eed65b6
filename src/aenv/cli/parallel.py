"""Doing one thing to many items, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def each(items: Sequence[T], at_once: int, act: Callable[[T], Awaitable[None]]) -> None:
    """Await `act` for every item, at most `at_once` together. The first error stops all and is raised."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await act(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
