"""Machines and VMM processes made ahead of demand, and paused ones kept a while.

All of it is cache: with every pool empty a client sees the same, only later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import structlog

from aenv import unexpected
from aenv.errors import AenvError
from aenv.sandboxes.machines import Machine
from aenv.tasks import finish

T = TypeVar("T")

log = structlog.get_logger()

QUIET_SECONDS = 0.8
"""How long clients must have been quiet before a pool is filled: filling competes for the CPU."""

PATIENCE_SECONDS = 5.0
"""After this long a pool is filled even though clients are busy."""

RETRY_SECONDS = 5.0
"""Rest after a failed attempt to fill, so that a broken host isn't kept busy."""


class Activity:
    """Knows whether clients are busy, so that background work can wait for a quiet moment."""

    def __init__(self) -> None:
        self._under_way = 0
        self._last = 0.0

    def touch(self) -> None:
        """A client did something just now."""
        self._last = asyncio.get_running_loop().time()

    @contextmanager
    def operation(self) -> Iterator[None]:
        """One operation under way."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()

    async def quiet(self) -> None:
        """Return at the next quiet moment, or when patience is at an end."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + PATIENCE_SECONDS
        while (now := loop.time()) < limit:
            rest = self._last + QUIET_SECONDS - now
            if self._under_way == 0 and rest <= 0:
                return
            await asyncio.sleep(max(rest, 0.05))


class Pool(Generic[T]):
    """Up to `size` ready things for each of the `kinds` most recently asked-for keys.

    `make(key)` makes one, `dispose` ends one, `ended` tells whether one has died meanwhile. One task, the
    one in `run`, fills; nothing else does.
    """

    def __init__(
        self,
        name: str,
        size: int,
        kinds: int,
        *,
        make: Callable[[str], Awaitable[T]],
        dispose: Callable[[T], Coroutine[Any, Any, None]],
        ended: Callable[[T], bool],
        activity: Activity,
    ) -> None:
        self._name = name
        self._size = size
        self._kinds = kinds
        self._make = make
        self._dispose = dispose
        self._ended = ended
        self._activity = activity
        self._ready: OrderedDict[str, deque[T]] = OrderedDict()
        self._surplus: list[T] = []
        self._wanted = asyncio.Event()
        self._filled = asyncio.Event()

    def want(self, key: str) -> None:
        """Say that things with this key are in demand."""
        if self._size == 0:
            return
        self._ready.setdefault(key, deque())
        self._ready.move_to_end(key)
        while len(self._ready) > self._kinds:
            _, given_up = self._ready.popitem(last=False)
            self._surplus.extend(given_up)
        self._wanted.set()

    async def first(self, key: str, seconds: float) -> None:
        """Wait for the first thing with this key, at most so long: without it all works too, only later."""
        self.want(key)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while key in self._ready and not self._ready[key]:
                    self._filled.clear()
                    await self._filled.wait()

    def forget(self, key: str) -> None:
        """Say that nothing with this key will be asked for again."""
        self._surplus.extend(self._ready.pop(key, ()))
        self._wanted.set()

    def forget_all(self) -> None:
        """Give up everything, until it is asked for again."""
        for key in list(self._ready):
            self.forget(key)

    def take(self, key: str) -> T | None:
        """A ready thing, now the caller's, if there is one. Demand is noted."""
        self.want(key)
        ready = self._ready.get(key)
        while ready:
            thing = ready.popleft()
            if not self._ended(thing):
                return thing
            self._surplus.append(thing)
        return None

    def count(self, key: str | None = None) -> int:
        """How many are ready, for one key or for all."""
        if key is not None:
            return len(self._ready.get(key, ()))
        return sum(len(ready) for ready in self._ready.values())

    def _short_of(self) -> str | None:
        """The most recently wanted key with too few ready."""
        return next((key for key, ready in reversed(self._ready.items()) if len(ready) < self._size), None)

    async def run(self) -> None:
        """Fill and tidy until cancelled; then end everything that is left."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await self._dispose_surplus()
                while (key := self._short_of()) is not None:
                    await self._activity.quiet()
                    await self._fill(key)
                    self._filled.set()
                    await self._dispose_surplus()
        finally:
            while self._ready:
                _, ready = self._ready.popitem()
                self._surplus.extend(ready)
            await self._dispose_surplus()

    async def _fill(self, key: str) -> None:
        try:
            thing = await self._make(key)
        except Exception as error:  # noqa: BLE001 (a pool that can't fill is slow, not broken)
            if isinstance(error, AenvError | OSError):
                log.warning("pool can't be filled", pool=self._name, error=str(error))
            else:
                unexpected.note("pools", "pool can't be filled", error, pool=self._name)
            self.forget(key)  # until it is asked for again
            await asyncio.sleep(RETRY_SECONDS)
            return
        if key in self._ready:
            self._ready[key].append(thing)
        else:
            self._surplus.append(thing)

    async def _dispose_surplus(self) -> None:
        while self._surplus:
            try:
                await finish(self._dispose(self._surplus.pop()))
            except Exception as error:  # noqa: BLE001 (one that can't be ended mustn't keep the others)
                unexpected.note("pools", "a spare can't be ended", error, pool=self._name)


class StoppedMachines:
    """Machines of paused sandboxes, kept stopped in memory: a resume from here is the quickest.

    Their state is already on disk, so giving one up loses nothing; the coldest goes first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._machines: OrderedDict[str, Machine] = OrderedDict()

    def __len__(self) -> int:
        return len(self._machines)

    def put(self, sandbox_id: str, machine: Machine) -> list[Machine]:
        """Keep a machine; returns those that the caller must destroy to stay within the size."""
        self._machines[sandbox_id] = machine
        given_up = []
        while len(self._machines) > self._size:
            given_up.append(self._machines.popitem(last=False)[1])
        return given_up

    def get(self, sandbox_id: str) -> Machine | None:
        """The machine if it is still here, where it stays."""
        return self._machines.get(sandbox_id)

    def take(self, sandbox_id: str) -> Machine | None:
        """The machine, now the caller's, if it is still here."""
        return self._machines.pop(sandbox_id, None)

    def take_all(self) -> list[Machine]:
        """Every machine, now the caller's."""
        machines = list(self._machines.values())
        self._machines.clear()
        return machines
