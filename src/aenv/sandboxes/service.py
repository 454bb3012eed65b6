"""The operations on sandboxes, as the HTTP edge and the proxy see them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from aenv import timings, unexpected
from aenv.errors import (
    AenvError,
    InvalidRequest,
    LimitReached,
    NoSpace,
    Overloaded,
    SandboxNotFound,
)
from aenv.host import MemoryUse
from aenv.sandboxes import store
from aenv.sandboxes.branching import Branching
from aenv.sandboxes.core import Core
from aenv.sandboxes.creation import Creation
from aenv.sandboxes.deadlines import Deadlines
from aenv.sandboxes.idempotency import IdempotencyKeys
from aenv.sandboxes.models import Census, CreateSandbox, Endpoint, Sandbox, SandboxFilter, Template
from aenv.sandboxes.pools import Spare
from aenv.sandboxes.reserve import Reserve
from aenv.sandboxes.rollback import Rollback
from aenv.sandboxes.room import PAUSED_BECAUSE, Room, cannot_write
from aenv.sandboxes.states import Operation, State
from aenv.tasks import finish
from aenv.templates import names

T = TypeVar("T")

log = structlog.get_logger()

AUTO_RESUME_TIMEOUT = 300.0
"""Least time to the deadline after traffic has resumed a sandbox, seconds, as in E2B."""

LEAVE_SECONDS = 5.0
"""How long a stopping server tries to let go of a VM that it leaves to the next one."""


class SandboxService:
    """All operations on the sandboxes of one node; implements `aenv.sandboxes.base.Sandboxes`."""

    def __init__(self, core: Core, max_fork: int, reserve: Reserve) -> None:
        self._core = core
        self._max_fork = max_fork
        self._creation = Creation(core)
        self._keys = IdempotencyKeys(core.database)
        self._branching = Branching(core, self._creation)
        self.room = Room(core, reserve, self._pause_for_want_of_room)
        self._rollback = Rollback(core)
        self._deadlines = Deadlines(core, self._expire)
        self._pauses: dict[tuple[str, bool], asyncio.Future[None]] = {}
        """Pauses under way, by sandbox and whether they keep the memory."""

    async def create(self, request: CreateSandbox, key: str | None = None) -> Sandbox:
        """Start a sandbox; see `Sandboxes.create`."""
        if key is None:
            return await self._creation.create(request)
        return await self._core.whole(self._keys.once(key, request, self._creation.create))

    async def get(self, sandbox_id: str) -> Sandbox:
        """The record of a running or paused sandbox; see `Sandboxes.get`."""
        return await self._core.get(sandbox_id)

    async def list(self, query: SandboxFilter) -> Sequence[Sandbox]:
        """One page of records; see `Sandboxes.list`."""
        return await self._core.database.run(lambda c: store.find(c, query))

    async def count(self, query: SandboxFilter) -> int:
        """How many records match; see `Sandboxes.count`."""
        return await self._core.database.run(lambda c: store.count(c, query))

    async def census(self) -> Census:
        """How much there is of what; see `Sandboxes.census`."""
        core = self._core
        states = await core.database.run(store.by_state)
        vmms: dict[str, Sequence[Spare]] = {"running": core.live.machines(), **core.starter.spares.ready()}

        def measure() -> dict[str, MemoryUse]:
            return {kind: _total(each.memory() for each in of_kind) for kind, of_kind in vmms.items()}

        memory = await asyncio.to_thread(measure)
        admitted, allowed = core.admission.used(), core.admission.limits
        return Census(states, core.starter.spares.census(), memory, core.starter.waiting, admitted, allowed)

    async def connect(self, sandbox_id: str, timeout: float, *, memory: bool = True) -> tuple[Sandbox, bool]:
        """Resume if paused, extend the deadline; see `Sandboxes.connect`."""
        self._core.check_timeout(timeout)
        return await self._core.whole(self._connect(sandbox_id, timeout, memory=memory, group="resume"))

    async def _connect(
        self, sandbox_id: str, timeout: float, *, memory: bool, group: str
    ) -> tuple[Sandbox, bool]:
        async with self._core.locks.hold(sandbox_id):
            if self._core.live.machine(sandbox_id) is not None:
                return await self._deadlines.extend(await self._core.get(sandbox_id), timeout), False
            resumed = await self._creation.resume(sandbox_id, timeout, None, memory=memory, group=group)
            return resumed, True

    async def resume(
        self, sandbox_id: str, timeout: float, auto_pause: bool | None = None, *, memory: bool = True
    ) -> Sandbox:
        """Resume a paused sandbox; see `Sandboxes.resume`."""
        self._core.check_timeout(timeout)

        async def work() -> Sandbox:
            async with self._core.locks.hold(sandbox_id):
                return await self._creation.resume(sandbox_id, timeout, auto_pause, memory=memory)

        return await self._core.whole(work())

    async def pause(
        self, sandbox_id: str, *, memory: bool = True, require_healthy_guest: bool = False
    ) -> None:
        """Capture and stop; see `Sandboxes.pause`."""
        if (under_way := self._pauses.get((sandbox_id, memory))) is not None:
            await asyncio.shield(under_way)
            return
        healthy = require_healthy_guest or not memory
        await self._core.whole(self._pause(sandbox_id, memory=memory, require_healthy_guest=healthy))

    async def _pause(
        self, sandbox_id: str, *, memory: bool, require_healthy_guest: bool = False, if_passed: bool = False
    ) -> None:
        async with self._core.locks.hold(sandbox_id):
            if if_passed and not await self._deadlines.has_passed(sandbox_id):
                return
            outcome = asyncio.ensure_future(
                self._saved(sandbox_id, memory=memory, require_healthy_guest=require_healthy_guest)
            )
            self._pauses[sandbox_id, memory] = outcome
            try:
                await outcome
            finally:
                del self._pauses[sandbox_id, memory]

    async def _saved(self, sandbox_id: str, *, memory: bool, require_healthy_guest: bool) -> None:
        """Pause; if the disk is full, once more with all the room that can be made."""
        await self.room.make_if_short()
        pause = functools.partial(
            self._branching.pause, sandbox_id, memory=memory, require_healthy_guest=require_healthy_guest
        )
        try:
            await pause()
        except NoSpace as error:
            log.warning("a pause found the disk full", sandbox=sandbox_id, error=str(error))
            await self.room.make(for_pause=True)
            await self._core.unclaim(sandbox_id, Operation.PAUSE)  # there was no room to record the failure
            await pause()

    async def _pause_for_want_of_room(self, sandbox_id: str) -> None:
        await self._branching.pause(
            sandbox_id, memory=True, require_healthy_guest=False, reason=PAUSED_BECAUSE
        )

    async def kill(self, sandbox_id: str) -> None:
        """Delete a sandbox; see `Sandboxes.kill`."""
        await self._core.whole(self._kill(sandbox_id))

    async def _kill(self, sandbox_id: str, *, if_passed: bool = False) -> None:
        core = self._core
        async with core.locks.hold(sandbox_id):
            if if_passed and not await self._deadlines.has_passed(sandbox_id):
                return
            with timings.operation("kill"):
                await self._end(sandbox_id)
        core.tasks.start(core.tidy())

    async def _end(self, sandbox_id: str) -> None:
        """End a sandbox, holding its lock. What its VM used is wiped afterwards: nobody can meet it again."""
        core = self._core
        await self._with_room(lambda: core.claim(sandbox_id, Operation.KILL))
        machine = core.live.remove(sandbox_id) or core.starter.stopped.remove(sandbox_id)
        try:
            await core.telemetry.leave(sandbox_id)
            if machine is not None:
                await core.machines.stop(machine)
                core.tasks.start(core.machines.clear(machine))
            await self._with_room(lambda: core.database.run(lambda c: store.delete(c, sandbox_id)))
            core.telemetry.forget(sandbox_id)
        except BaseException:
            await finish(core.unclaim(sandbox_id, Operation.KILL))
            raise

    async def _with_room(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what must be possible on a full disk, as it makes room: if need be with all that can be had."""
        try:
            return await work()
        except NoSpace:
            await self.room.make(for_pause=True)
            return await work()

    async def _expire(self, sandbox_id: str) -> None:
        """What happens at a deadline, unless it was moved or something else came first."""
        sandbox = await self._core.database.run(lambda c: store.get(c, sandbox_id))
        if sandbox is not None and sandbox.auto_pause:
            memory = sandbox.auto_pause_memory
            await self._core.whole(self._pause(sandbox_id, memory=memory, if_passed=True))
        elif sandbox is not None:
            await self._core.whole(self._kill(sandbox_id, if_passed=True))

    async def set_timeout(self, sandbox_id: str, timeout: float) -> None:
        """Set the deadline; see `Sandboxes.set_timeout`."""
        await self._deadlines.set(sandbox_id, timeout)

    async def refresh(self, sandbox_id: str, duration: float) -> None:
        """Extend the deadline; see `Sandboxes.refresh`."""
        await self._deadlines.refresh(sandbox_id, duration)

    async def fork(
        self, sandbox_id: str, count: int, timeout: float | None = None
    ) -> Sequence[Sandbox | AenvError]:
        """Start copies of a running sandbox; see `Sandboxes.fork`."""
        if not 1 <= count <= self._max_fork:
            raise InvalidRequest(f"count must be from 1 to {self._max_fork}, not {count}")
        if timeout is not None:
            self._core.check_timeout(timeout)
        return await self._core.whole(self._branching.fork(sandbox_id, count, timeout))

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, memory: bool = True) -> Template:
        """Take a snapshot of a running sandbox; see `Sandboxes.snapshot`."""
        wanted = None if name is None else names.parse(name)
        return await self._core.whole(self._branching.snapshot(sandbox_id, wanted, memory=memory))

    async def roll_back(self, sandbox_id: str, snapshot: str) -> None:
        """Put a running sandbox back to one of its snapshots; see `Sandboxes.roll_back`."""
        await self._core.whole(self._rollback.roll_back(sandbox_id, snapshot))

    def live_endpoint(self, sandbox_id: str) -> Endpoint | None:
        """The endpoint if the sandbox runs right now."""
        self._core.activity.touch()
        return self._core.live.endpoint(sandbox_id)

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Where to send traffic; see `Sandboxes.endpoint`."""
        if self._core.live.waits_for_room(sandbox_id):
            raise cannot_write(sandbox_id)  # at once: it may be in the middle of a long pause
        async with self._core.locks.hold(sandbox_id):
            sandbox = await self._core.get(sandbox_id)
            found = self._core.live.endpoint(sandbox_id)
            if self._core.live.waits_for_room(sandbox_id):
                raise cannot_write(sandbox_id)
        wakes = sandbox.auto_resume and sandbox.memory_is_usable  # else whoever sent it would meet a reboot
        if found is None and sandbox.state is State.PAUSED and wakes:
            await self._wake(sandbox)
            found = self._core.live.endpoint(sandbox_id)
        if found is None:
            raise SandboxNotFound(sandbox_id)
        return found

    async def _wake(self, sandbox: Sandbox) -> None:
        """Resume a sandbox because of traffic. Raises Overloaded if there is no room for it."""
        timeout = min(max(sandbox.timeout, AUTO_RESUME_TIMEOUT), self._core.max_timeout)
        try:
            await self._core.whole(self._connect(sandbox.id, timeout, memory=True, group="traffic"))
        except LimitReached as error:  # whoever sent the traffic didn't send too much of it
            raise Overloaded(error.message, retry_after=error.retry_after) from error

    async def watch_deadlines(self) -> None:
        """Keep the deadlines until cancelled."""
        await self._deadlines.run()

    async def close(self, bound: float) -> None:
        """Pause every running sandbox, side by side, within `bound` seconds.

        The VM of one that couldn't be paused runs on: the next server adopts it.
        """
        core = self._core
        core.closing = True
        await core.tasks.drain()
        pauses = [core.tasks.start(self._pause(each, memory=True)) for each in core.live]
        if pauses:
            _, late = await asyncio.wait(pauses, timeout=bound)
            for task in late:
                task.cancel()
        await core.tasks.drain()
        await asyncio.gather(*map(self._leave, core.live))

    async def _leave(self, sandbox_id: str) -> None:
        """Leave a VM that couldn't be paused to the next server; what is in its way keeps no other one."""
        log.error("a sandbox couldn't be paused; its VM waits for the next server", sandbox=sandbox_id)
        machine = self._core.live.remove(sandbox_id)
        if machine is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._core.machines.leave(machine)
        except (AenvError, OSError) as error:  # TimeoutError is one
            log.error("a VM wasn't left well", sandbox=sandbox_id, error=repr(error))
        except Exception as error:  # noqa: BLE001 (the others must be left all the same)
            unexpected.note("sandboxes", "a VM wasn't left well", error, sandbox=sandbox_id)


def _total(uses: Iterable[MemoryUse]) -> MemoryUse:
    every = list(uses)
    return MemoryUse(sum(use.private for use in every), sum(use.shared for use in every))
