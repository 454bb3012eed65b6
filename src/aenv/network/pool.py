"""The pool of real slots: made ahead by one task, taken without waiting, wiped on return."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network
from typing import Final, TypeVar

import structlog

from aenv.errors import AenvError, HostNotReady, Overloaded, RuntimeFailure, ShuttingDown
from aenv.network import builder
from aenv.network.base import Slot
from aenv.network.builder import SlotBuilder
from aenv.network.plan import DEFAULT_SLOT_NETWORK, DEFAULT_VETH_NETWORK, LINK_LOCAL, SlotPlan

T = TypeVar("T")
log = structlog.get_logger(__name__)

MAX_SLOTS: Final = 4000
"""Most slots of one pool. Interfaces and rules were sized for this many."""
_REST: Final = 3.0
"""Seconds after a slot was taken until more are made ahead: whoever took it starts a VM now, and a slot takes
12 ms of a CPU. The guests of a fork of 16 have their identity by then."""
_RETRY_DELAY: Final = 1.0
"""Seconds between attempts to make slots ahead while the host refuses."""
_ADDRESS_ATTEMPTS: Final = 20
"""Attempts at one slot when other servers take addresses at the same time."""


class SlotPool:
    """The NetworkPool of a host. Its blocking work runs in one thread of its own.

    `tag` (4 to 6 hex digits) tells its namespaces, links and rules from those of other servers on the host.
    `prepared` slots are made ahead, and of those that tenants return no more than `kept` stay (by default as
    many as are made ahead, so that a quiet pool always has the same size). `denied` are destinations
    that no guest reaches, besides the slot ranges and this host.
    """

    def __init__(
        self,
        tag: str,
        *,
        prepared: int = 4,
        kept: int | None = None,
        limit: int = MAX_SLOTS,
        slot_network: IPv4Network = DEFAULT_SLOT_NETWORK,
        veth_network: IPv4Network = DEFAULT_VETH_NETWORK,
        denied: Iterable[IPv4Network] = (LINK_LOCAL,),
    ) -> None:
        self._plan = SlotPlan(tag, slot_network, veth_network)
        self._builder = SlotBuilder(self._plan, denied)
        self._limit = min(limit, MAX_SLOTS, self._plan.capacity)
        self._prepared = min(prepared, self._limit)
        self._kept = self._prepared if kept is None else kept
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aenv-network")
        self._idle: deque[Slot] = deque()
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._in_use: dict[int, Slot] = {}
        self._unclaimed: set[int] = set()
        """Slots in use that are another server's: kept by `start` and not adopted yet, or left to one."""
        self._wiping: dict[int, asyncio.Task[None]] = {}
        self._foreign: frozenset[int] = frozenset()
        self._wanted = asyncio.Event()
        self._taken = -math.inf  # by the clock of the loop, when a slot was taken last
        self._filler: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self, *, keep: Collection[Slot] = ()) -> None:
        """See NetworkPool.start. One slot is made at once, to find out whether this host can."""
        self._unclaimed = {slot.index for slot in keep if slot == self._plan.slot(slot.index)}
        try:
            await self._prepare()
        except BaseException as error:
            self._closing = asyncio.create_task(self._close(), name="close-network")
            await asyncio.shield(self._closing)
            if isinstance(error, OSError):
                raise HostNotReady(f"cannot prepare the network: {error}") from error
            raise
        self._filler = asyncio.create_task(self._fill(), name="network-slots")

    async def acquire(self) -> Slot:
        """See NetworkPool.acquire. Takes a prepared slot at once, else waits for one."""
        if self._filler is None or self._closing is not None:
            raise ShuttingDown
        if len(self._in_use) + len(self._waiting) >= self._limit:
            raise Overloaded(f"all {self._limit} network slots are in use", retry_after=5)
        self._wanted.set()
        self._taken = asyncio.get_running_loop().time()
        if self._idle:
            slot = self._idle.popleft()
            self._in_use[slot.index] = slot
            return slot
        waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiter)

    async def release(self, slot: Slot) -> None:
        """See NetworkPool.release. Goes on by itself when the caller is cancelled."""
        if self._closing is not None:
            return
        self._unclaimed.discard(slot.index)
        if self._in_use.pop(slot.index, None) is not None:
            task = asyncio.create_task(self._recycle(slot), name=f"wipe-{slot.namespace}")
            self._wiping[slot.index] = task
            task.add_done_callback(lambda _: self._wiping.pop(slot.index, None))
        if slot.index in self._wiping:
            await asyncio.shield(self._wiping[slot.index])

    async def adopt(self, slot: Slot) -> None:
        """See NetworkPool.adopt."""
        if self._in_use.get(slot.index) != slot:
            raise RuntimeFailure(f"network slot {slot.namespace} did not survive")
        self._unclaimed.discard(slot.index)

    async def leave(self, slot: Slot) -> None:
        """See NetworkPool.leave."""
        if slot.index in self._in_use:
            self._unclaimed.add(slot.index)

    def open_tap(self, slot: Slot) -> int:
        """See NetworkPool.open_tap."""
        return builder.open_tap(slot)

    async def close(self) -> None:
        """See NetworkPool.close. May be called more than once; goes on by itself when cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close-network")
        await asyncio.shield(self._closing)

    async def _prepare(self) -> None:
        await self._run(self._builder.prepare_host)
        await self._run(lambda: self._builder.remove_all(keep=self._unclaimed))
        self._unclaimed &= await self._run(self._builder.existing)
        self._in_use = {index: self._plan.slot(index) for index in self._unclaimed}
        self._foreign = await self._run(self._builder.occupied)
        if self._prepared > 0:
            self._idle.append(await self._create())

    async def _close(self) -> None:
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        self._fail_waiting(ShuttingDown())
        if self._wiping:
            await asyncio.wait(list(self._wiping.values()))
        try:
            # In the pool's only thread, so after any creation that was under way.
            await self._run(lambda: self._builder.remove_all(keep=self._unclaimed))
            if not self._unclaimed:
                await self._run(self._builder.leave_host)
        except (OSError, AenvError) as error:
            log.warning("network_not_removed", reason=str(error))
        finally:
            self._thread.shutdown(wait=False)

    async def _fill(self) -> None:
        """Make slots while fewer than wanted are idle; on failure tell who waits, and try again later."""
        while True:
            self._wanted.clear()
            rest = self._rest()
            if rest != 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await self._wanted.wait()
                continue
            try:
                slot = await self._create()
            except (AenvError, OSError) as error:
                log.warning("slot_not_made", reason=str(error))
                self._fail_waiting(error if isinstance(error, AenvError) else HostNotReady(str(error)))
                await asyncio.sleep(_RETRY_DELAY)
            else:
                # Meanwhile one may have come back, so that this is one too many.
                await self._keep(slot, max(self._prepared, self._kept))

    def _rest(self) -> float | None:
        """Seconds until the next slot is to be made; None while there are as many as are wanted."""
        if len(self._idle) >= self._prepared + len(self._waiting) or not self._room():
            return None
        if self._waiting:
            return 0
        return max(0.0, self._taken + _REST - asyncio.get_running_loop().time())

    def _room(self) -> bool:
        return len(self._in_use) + len(self._wiping) + len(self._idle) < self._limit

    async def _create(self) -> Slot:
        for _ in range(_ADDRESS_ATTEMPTS):
            index = self._free_index()
            with suppress(FileExistsError):
                return await self._run(partial(self._builder.create, index))
            self._foreign = await self._run(self._builder.occupied)
        raise HostNotReady("other servers on this host take network addresses too quickly")

    def _free_index(self) -> int:
        idle = {slot.index for slot in self._idle}
        for index in range(1, self._plan.capacity + 1):
            if not any(index in used for used in (self._in_use, self._wiping, idle, self._foreign)):
                return index
        raise HostNotReady("all network addresses are used by other servers: choose other private ranges")

    def _offer(self, slot: Slot) -> None:
        """Give a clean slot to the first who waits, or keep it."""
        self._in_use.pop(slot.index, None)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._in_use[slot.index] = slot
                waiter.set_result(slot)
                return
        self._idle.append(slot)

    async def _recycle(self, slot: Slot) -> None:
        clean = await self._run(lambda: self._builder.wipe(slot))
        if clean:
            await self._keep(slot, self._kept)
        else:
            await self._remove(slot)
        self._wanted.set()

    async def _keep(self, slot: Slot, most: int) -> None:
        """Give a clean slot to who waits or keep it, unless `most` are idle."""
        if self._waiting or len(self._idle) < most:
            self._offer(slot)
        else:
            await self._remove(slot)

    async def _remove(self, slot: Slot) -> None:
        try:
            await self._run(lambda: self._builder.destroy(slot))
        except OSError as error:
            log.warning("slot_not_removed", namespace=slot.namespace, reason=str(error))

    def _fail_waiting(self, error: AenvError) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
