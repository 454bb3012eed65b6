"""Machines and VMM processes made ahead of demand.

They are cache: with every pool empty a client sees the same, only later.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import structlog

from aenv import unexpected
from aenv.errors import AenvError
from aenv.host import MemoryUse
from aenv.sandboxes.activity import Activity
from aenv.sandboxes.demand import Demand
from aenv.tasks import finish

log = structlog.get_logger()

FLOOR = 2
"""How many are kept of what is in little demand: one, and another to have while that one is replaced."""

TICK_SECONDS = 5.0
"""How often it is looked whether there are too many by now, or room for more."""

RETRY_SECONDS = 5.0
"""Rest after a failed attempt to fill, so that a broken host isn't kept busy."""


class Spare(Protocol):
    """What can be kept in a pool."""

    def memory(self) -> MemoryUse:
        """What it holds of the host's memory. Called in any thread."""


T = TypeVar("T", bound=Spare)


@dataclass
class _Kind(Generic[T]):
    """What there is for one key, and how much of it is asked for."""

    demand: Demand
    ready: deque[T] = field(default_factory=deque)


class Pool(Generic[T]):
    """Ready things for each of the `kinds` most recently asked-for keys: as many as were asked for at once
    lately, at least `FLOOR` and at most `most`.

    `make(key)` makes one, `dispose` ends one, `ended` tells whether one has died meanwhile. One task, the
    one in `run`, fills; nothing else does.
    """

    def __init__(
        self,
        name: str,
        most: int,
        kinds: int,
        *,
        make: Callable[[str], Awaitable[T]],
        dispose: Callable[[T], Coroutine[Any, Any, None]],
        ended: Callable[[T], bool],
        activity: Activity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.hits = self.misses = 0
        """Things asked for that were there, and those that weren't."""
        self.may_make: Callable[[], Awaitable[bool]] = _always
        """Asked before one is made: whether there is room for it."""
        self._most = most
        self._kinds = kinds
        self._make = make
        self._dispose = dispose
        self._ended = ended
        self._activity = activity
        self._clock = clock
        self._by_key: OrderedDict[str, _Kind[T]] = OrderedDict()
        self._surplus: list[T] = []
        self._wanted = asyncio.Event()
        self._filled = asyncio.Event()

    def want(self, key: str) -> None:
        """Say that things with this key may be asked for."""
        if self._most == 0:
            return
        self._by_key.setdefault(key, _Kind(Demand(self._clock)))
        self._by_key.move_to_end(key)
        while len(self._by_key) > self._kinds:
            _, given_up = self._by_key.popitem(last=False)
            self._surplus.extend(given_up.ready)
        self._wanted.set()

    async def first(self, key: str, seconds: float) -> None:
        """Wait for the first thing with this key, at most so long: without it all works too, only later."""
        self.want(key)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while key in self._by_key and not self._by_key[key].ready:
                    self._filled.clear()
                    await self._filled.wait()

    def forget(self, key: str) -> None:
        """Say that nothing with this key will be asked for again."""
        if (kind := self._by_key.pop(key, None)) is not None:
            self._surplus.extend(kind.ready)
        self._wanted.set()

    def forget_all(self) -> None:
        """Give up everything, until it is asked for again."""
        for key in list(self._by_key):
            self.forget(key)

    def take(self, key: str) -> T | None:
        """A ready thing, now the caller's, if there is one. Demand is noted."""
        self.want(key)
        if (kind := self._by_key.get(key)) is None:
            return None
        kind.demand.note()
        while kind.ready:
            thing = kind.ready.popleft()
            if not self._ended(thing):
                self.hits += 1
                return thing
            self._surplus.append(thing)
        self.misses += 1
        return None

    def ready(self) -> list[T]:
        """All that is ready, coldest first."""
        return [thing for kind in self._by_key.values() for thing in kind.ready]

    def give_up(self) -> Coroutine[Any, Any, None] | None:
        """Take out the coldest; the caller awaits its end. None if nothing is ready."""
        for kind in self._by_key.values():
            if kind.ready:
                return self._dispose(kind.ready.popleft())
        return None

    def count(self, key: str | None = None) -> int:
        """How many are ready, for one key or for all."""
        return sum(len(kind.ready) for each, kind in self._by_key.items() if key in (None, each))

    def wanted(self, key: str | None = None) -> int:
        """How many there should be, for one key or for all."""
        return sum(self._target(kind) for each, kind in self._by_key.items() if key in (None, each))

    def _target(self, kind: _Kind[T]) -> int:
        return min(self._most, max(FLOOR, kind.demand.expected))

    def _short_of(self) -> str | None:
        """The most recently wanted key with too few ready."""
        kinds = reversed(self._by_key.items())
        return next((key for key, kind in kinds if len(kind.ready) < self._target(kind)), None)

    async def run(self) -> None:
        """Fill and tidy until cancelled; then end everything that is left."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._wanted.wait()
                self._wanted.clear()
                self._shrink()
                await self._dispose_surplus()
                while (key := self._short_of()) is not None and await self.may_make():
                    await self._activity.quiet()
                    await self._fill(key)
                    self._filled.set()
                    await self._dispose_surplus()
        finally:
            while self._by_key:
                _, kind = self._by_key.popitem()
                self._surplus.extend(kind.ready)
            await self._dispose_surplus()

    def _shrink(self) -> None:
        """Give up what is more than demand asks for."""
        for kind in self._by_key.values():
            while len(kind.ready) > self._target(kind):
                self._surplus.append(kind.ready.popleft())

    async def _fill(self, key: str) -> None:
        try:
            thing = await self._make(key)
        except Exception as error:  # noqa: BLE001 (a pool that can't fill is slow, not broken)
            if key not in self._by_key and isinstance(error, AenvError | OSError):
                # It was forgotten meanwhile, as what is made from a snapshot that was deleted.
                log.debug("pool needn't be filled any more", pool=self.name, error=str(error))
                return
            if isinstance(error, AenvError | OSError):
                log.warning("pool can't be filled", pool=self.name, error=str(error))
            else:
                unexpected.note("pools", "pool can't be filled", error, pool=self.name)
            self.forget(key)  # until it is asked for again
            await asyncio.sleep(RETRY_SECONDS)
            return
        if key in self._by_key:
            self._by_key[key].ready.append(thing)
        else:
            self._surplus.append(thing)

    async def _dispose_surplus(self) -> None:
        while self._surplus:
            try:
                await finish(self._dispose(self._surplus.pop()))
            except Exception as error:  # noqa: BLE001 (one that can't be ended mustn't keep the others)
                unexpected.note("pools", "a spare can't be ended", error, pool=self.name)


async def _always() -> bool:
    return True
