"""How much memory spare machines may hold, and which are given up first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from aenv import unexpected
from aenv.errors import Overloaded
from aenv.host import HostMemory
from aenv.sandboxes.models import PoolCensus
from aenv.sandboxes.pools import Spare
from aenv.sandboxes.turns import spread
from aenv.tasks import finish

log = structlog.get_logger()

WATCH_SECONDS = 2.0
"""How often it is looked whether spares hold too much."""

RETRY_SECONDS = 5.0
"""When a start that found no memory is worth another try."""

FIRST_GUESS = 64 << 20
"""Bytes that a spare is taken to hold while there is none of its kind to be measured."""

MARGIN = 2
"""Spares leave the reserve so many times over, so that starts seldom have to wait for the end of one."""


class Pool(Protocol):
    """What holds spares of one kind."""

    name: str
    hits: int
    misses: int

    def ready(self) -> Sequence[Spare]:
        """All that is ready, coldest first."""

    def give_up(self) -> Coroutine[Any, Any, None] | None:
        """Take out the coldest; the caller awaits its end. None if there is nothing."""

    def count(self) -> int:
        """How many are ready."""

    def wanted(self) -> int:
        """How many there should be."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. `budget` is the most that spares may hold, `reserve` what starts leave of the host's memory."""

    budget: int
    reserve: int


class Spares:
    """All pools together, in the order in which they are given up.

    `memory` says what the host has left; it is asked in a thread.
    """

    def __init__(self, pools: Sequence[Pool], plan: MemoryPlan, memory: Callable[[], HostMemory]) -> None:
        self._pools = pools
        self._plan = plan
        self._memory = memory
        self._given_up = dict.fromkeys((pool.name for pool in pools), 0)
        self._promised = 0
        self._trimming = asyncio.Lock()

    def census(self) -> dict[str, PoolCensus]:
        """How each pool does."""
        return {
            pool.name: PoolCensus(
                pool.count(), pool.wanted(), pool.hits, pool.misses, self._given_up[pool.name]
            )
            for pool in self._pools
        }

    def ready(self) -> dict[str, Sequence[Spare]]:
        """What is ready in each pool, coldest first."""
        return {pool.name: pool.ready() for pool in self._pools}

    async def watch(self) -> None:
        """Keep the spares within the budget, and out of the way of what runs, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.trim()

    async def trim(self) -> None:
        """Give up what is too much, the coldest of the first pool first."""
        async with self._trimming:
            held, available = await self._measure()
            total = sum(sum(sizes) for sizes in held)
            excess = max(total - self._plan.budget, MARGIN * self._plan.reserve - available)
            for pool, sizes in zip(self._pools, held, strict=True):
                for size in sizes:
                    if excess <= 0:
                        return
                    await self._end(pool)
                    excess -= size

    async def may_make(self, name: str) -> bool:
        """Whether there is room for one more in a pool, at the cost of those that are given up before it."""
        held, available = await self._measure()
        place = next(place for place, pool in enumerate(self._pools) if pool.name == name)
        one = sum(held[place]) // len(held[place]) if held[place] else FIRST_GUESS
        kept = sum(sum(sizes) for sizes in held[place:])
        to_be_had = available + sum(sum(sizes) for sizes in held[:place])
        return kept + one <= self._plan.budget and to_be_had - one >= MARGIN * self._plan.reserve

    @asynccontextmanager
    async def room(self, need: int) -> AsyncIterator[None]:
        """So many bytes of the host's memory, for what is started in the block; spares make way for it.

        Raises Overloaded if there are too few even so.
        """
        self._promised += need
        try:
            async with self._trimming:
                while (available := await self._available()) - self._promised < self._plan.reserve:
                    if not await self._end_coldest():
                        raise Overloaded(
                            f"the host has {available >> 20} MiB of memory left, of which "
                            f"{self._plan.reserve >> 20} are kept free: pause or kill sandboxes",
                            retry_after=spread(RETRY_SECONDS),
                        )
            yield
        finally:
            self._promised -= need

    async def _available(self) -> int:
        return (await asyncio.to_thread(self._memory)).available

    async def _measure(self) -> tuple[list[list[int]], int]:
        """What each spare holds, by pool, coldest first; and what the host has left that isn't promised."""
        ready = [list(pool.ready()) for pool in self._pools]

        def measure() -> tuple[list[list[int]], int]:
            held = [[thing.memory().private for thing in things] for things in ready]
            return held, self._memory().available

        held, available = await asyncio.to_thread(measure)
        return held, available - self._promised

    async def _end_coldest(self) -> bool:
        for pool in self._pools:
            if await self._end(pool):
                return True
        return False

    async def _end(self, pool: Pool) -> bool:
        """End the coldest of a pool; False if there is none."""
        ending = pool.give_up()
        if ending is None:
            return False
        self._given_up[pool.name] += 1
        try:
            await finish(ending)
        except Exception as error:  # noqa: BLE001 (one that can't be ended mustn't keep the others)
            unexpected.note("pools", "a spare can't be ended", error, pool=pool.name)
        return True
