"""Whose start is next: a few at a time, and no burst of one kind keeps the others waiting."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv import timings
from aenv.errors import Overloaded

_Waiting = asyncio.Future[None]

LONGEST_RETRY = 60.0
"""Most seconds after which a refused client is told to come again."""

_WEIGHT = 0.2
"""Of the latest start in the mean of how long one takes."""


def spread(seconds: float) -> float:
    """When a refused client should come again, so that not all who were refused together come together."""
    return min(LONGEST_RETRY, max(1.0, seconds * random.uniform(1, 2)))  # noqa: S311 -- no secret


class StartTurns:
    """Gives turns to start a VM: `at_once` at a time, in turn between groups, in each as they came.

    At most `max_waiting` wait, each for at most `max_seconds`; then there is an Overloaded that says when to
    come again. When all places are taken, the group with the most gives up its latest to a group with fewer.
    """

    def __init__(self, at_once: int, max_waiting: int, max_seconds: float) -> None:
        self._at_once = at_once
        self._free = at_once
        self._max_waiting = max_waiting
        self._max_seconds = max_seconds
        self._groups: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self._mean = 1.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(group) for group in self._groups.values())

    @asynccontextmanager
    async def turn(self, group: str) -> AsyncIterator[None]:
        """A turn for the time of the block. Raises Overloaded."""
        with timings.measure("queue"):
            await self._acquire(group)
        async with self._held():
            yield

    async def idle(self) -> None:
        """Return once a turn is free: what nobody waits for may begin then.

        It doesn't get the turn, as it is slow on a busy host and must not keep it from who waits.
        """
        await self._idle.wait()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            self._mean += _WEIGHT * (loop.time() - begun - self._mean)
            self._next()

    async def _acquire(self, group: str) -> None:
        if self._free > 0:  # then nobody waits
            self._free -= 1
            if self._free == 0:
                self._idle.clear()
            return
        if self.waiting >= self._max_waiting:
            self._make_place(group)
        turn: _Waiting = asyncio.get_running_loop().create_future()
        queue = self._groups.setdefault(group, deque())
        queue.append(turn)
        try:
            await self._granted(turn, queue, self._max_seconds)
        finally:
            if not queue and self._groups.get(group) is queue:
                del self._groups[group]

    async def _granted(self, turn: _Waiting, queue: deque[_Waiting], seconds: float) -> None:
        """Wait for a turn. If it comes too late or the caller is cancelled, it is given on."""
        try:
            await asyncio.wait([turn], timeout=seconds)
        except BaseException:
            if turn.done() and turn.exception() is None:
                self._next()
            raise
        finally:
            if not turn.done():
                queue.remove(turn)
                turn.cancel()
        if turn.cancelled():
            raise self._refusal(f"there was no turn to start it within {seconds:g} s")
        turn.result()

    def _make_place(self, group: str) -> None:
        """Refuse the latest of the longest group, or the caller if its own is about as long."""
        own = len(self._groups.get(group, ()))
        longest = max(self._groups.values(), key=len)
        if len(longest) <= own + 1:
            raise self._refusal("no more may wait")
        longest.pop().set_exception(self._refusal("others get their share first"))

    def _refusal(self, reason: str) -> Overloaded:
        waiting = self.waiting
        return Overloaded(
            f"{waiting} sandboxes are waiting to be started already, and {reason}",
            retry_after=spread(waiting * self._mean / self._at_once),
        )

    def _next(self) -> None:
        """A turn has ended: whose is it now?"""
        if self._groups:
            group, queue = self._groups.popitem(last=False)
            queue.popleft().set_result(None)
            if queue:
                self._groups[group] = queue
        else:
            self._free += 1
            self._idle.set()
