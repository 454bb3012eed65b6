"""What every operation on a sandbox is made of: turns, claims, publishing a VM, losing one.

Operations on one sandbox take turns, in the order in which they came, by a lock per sandbox; each then
claims its transition by compare-and-set in the database, which is the authority. An operation runs to
its end even if the client that asked for it goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from aenv import ids
from aenv.database import Database
from aenv.errors import (
    AenvError,
    Conflict,
    InvalidRequest,
    SandboxLost,
    SandboxNotFound,
    SandboxNotRunning,
    ShuttingDown,
    StorageFailure,
)
from aenv.sandboxes import capturing, store
from aenv.sandboxes.activity import Activity
from aenv.sandboxes.admission import Admission
from aenv.sandboxes.live import LiveSandboxes
from aenv.sandboxes.machines import Machine, Machines
from aenv.sandboxes.models import Limits, Sandbox
from aenv.sandboxes.starting import Starter
from aenv.sandboxes.states import LIVE, TRANSITIONS, VISIBLE, Operation, State
from aenv.snapshots.captures import Captures
from aenv.tasks import KeyedLocks, TaskSet
from aenv.telemetry.service import Telemetry

T = TypeVar("T")

log = structlog.get_logger()

LOST_KEPT_SECONDS = 24 * 3600.0
"""How long the reason why a sandbox was lost is kept."""

_STARTED = {Operation.CREATE: "sandbox created", Operation.RESUME: "sandbox resumed"}

RETRY_SECONDS = 1.0
"""Rest before the database is asked again to record what it couldn't, and a guest to go on."""

ATTEMPTS = 20
"""How often a guest that doesn't answer is asked again to let processes go on."""


class SandboxLocks(KeyedLocks):
    """One lock per sandbox; what is logged in a turn names the sandbox."""

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of a sandbox."""
        with structlog.contextvars.bound_contextvars(sandbox=key):
            async with super().hold(key):
                yield


class Core:
    """Shared by the operations; knows the database, the machines and who has which."""

    def __init__(
        self,
        *,
        database: Database,
        captures: Captures,
        machines: Machines,
        starter: Starter,
        activity: Activity,
        telemetry: Telemetry,
        limits: Limits,
        max_timeout: float,
    ) -> None:
        self.database = database
        self.captures = captures
        self.machines = machines
        self.starter = starter
        self.live = LiveSandboxes()
        self.admission = Admission(limits, self.live.resources)
        self.telemetry = telemetry
        telemetry.watch(self.live.guests)
        self.locks = SandboxLocks()
        self.tasks = TaskSet()
        self.closing = False
        self.on_captured: Callable[[str], None] = lambda _sandbox_id: None
        """Called with the id of each sandbox that was captured, once that is durable."""
        self.on_built: Callable[[str], None] = lambda _build_id: None
        """Called with the id of each build that a snapshot made."""
        self.on_admitted: list[Callable[[str, Machine], None]] = []
        """Called with each sandbox that runs now, and its machine."""
        self.activity = activity
        self.max_timeout = max_timeout

    def check_timeout(self, timeout: float) -> None:
        """Raise InvalidRequest unless `timeout` (seconds) can be granted."""
        if not 0 < timeout <= self.max_timeout:
            raise InvalidRequest(f"timeout must be more than 0 and at most {self.max_timeout:g} seconds")

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation to its end, whoever stops waiting for it."""
        if self.closing:
            work.close()
            raise ShuttingDown
        with self.activity.operation():
            return await asyncio.shield(self.tasks.start(work))

    async def get(self, sandbox_id: str) -> Sandbox:
        """The record of a running or paused sandbox. Raises SandboxNotFound, SandboxLost with the reason."""
        return await self.database.run(lambda c: _visible(c, sandbox_id))

    async def claim(self, sandbox_id: str, operation: Operation) -> Sandbox:
        """Claim a transition by compare-and-set, holding the lock.

        Raises SandboxNotFound or Conflict; for a snapshot SandboxNotRunning, as in E2B.
        """
        transition = TRANSITIONS[operation]

        def transaction(connection: sqlite3.Connection) -> tuple[Sandbox, Sandbox | None]:
            before = _visible(connection, sandbox_id)
            return before, store.change(connection, sandbox_id, transition.sources, state=transition.via)

        before, claimed = await self.database.run(transaction)
        if claimed is None and operation is Operation.SNAPSHOT:
            raise SandboxNotRunning(sandbox_id)
        if claimed is None:
            resumable = before.state is State.PAUSED and operation is not Operation.PAUSE
            hint = ": resume it first" if resumable else ""
            raise Conflict(f"can't {operation} sandbox {sandbox_id}: it is {before.state}{hint}")
        return claimed

    async def unclaim(self, sandbox_id: str, operation: Operation) -> None:
        """The operation failed and the sandbox is as before; its lock is held.

        If that can't be recorded, as on a full disk, it is tried again until it can.
        """
        await self._now_or_later(sandbox_id, functools.partial(_unclaim, sandbox_id, operation))

    async def _now_or_later(self, sandbox_id: str, record: Callable[[sqlite3.Connection], None]) -> None:
        """Record what became of a sandbox whose lock is held, if not now then as soon as the database can."""
        try:
            await self.database.run(record)
        except StorageFailure as error:
            log.error("what became of a sandbox can't be recorded", sandbox=sandbox_id, error=str(error))
            self.tasks.start(self._later(sandbox_id, record))

    async def _later(self, sandbox_id: str, record: Callable[[sqlite3.Connection], None]) -> None:
        while not self.closing:
            await asyncio.sleep(RETRY_SECONDS)
            async with self.locks.hold(sandbox_id):
                with contextlib.suppress(StorageFailure):
                    await self.database.run(record)
                    return

    async def publish(
        self, sandbox: Sandbox, machine: Machine, operation: Operation, timeout: float, **changes: Any
    ) -> Sandbox:
        """A started machine becomes its sandbox's: the record first, then the ports open.

        On failure the machine is destroyed and the sandbox as before.
        """
        transition = TRANSITIONS[operation]
        try:
            changed = await self.database.run(
                lambda c: store.change(
                    c,
                    sandbox.id,
                    {transition.via},
                    state=State.RUNNING,
                    end_at=time.time() + timeout,
                    timeout=timeout,
                    instance_id=machine.id,
                    envd_unresponsive_at_pause=False,
                    reason=None,
                    **changes,
                )
            )
        except StorageFailure:
            await self.machines.destroy(machine)
            await self.unclaim(sandbox.id, operation)
            raise
        if changed is None:
            await self.machines.destroy(machine)
            raise SandboxNotFound(sandbox.id)
        self.admit(changed, machine)
        self.telemetry.record(sandbox.id, operation, _STARTED[operation], template=sandbox.template_id)
        return changed

    def admit(self, sandbox: Sandbox, machine: Machine) -> None:
        """The machine, which runs, is the sandbox's: its ports open, and its end will be noticed."""
        self.live.add(sandbox, machine)
        self.telemetry.admit(sandbox.id)

        def ended(future: asyncio.Future[str]) -> None:
            # A machine that was given up before, as a stopped one is, ends without a word.
            if not future.cancelled() and self.live.machine(sandbox.id) is machine:
                self.tasks.start(self._lose(sandbox.id, machine, future.result()))

        machine.instance.ended.add_done_callback(ended)
        for told in self.on_admitted:
            told(sandbox.id, machine)

    async def _lose(self, sandbox_id: str, machine: Machine, reason: str) -> None:
        """The VM ended by itself. Does nothing if the sandbox has given it up meanwhile."""
        async with self.locks.hold(sandbox_id):
            if self.live.machine(sandbox_id) is machine:
                await self.end_lost(sandbox_id, machine, reason)
        await self.tidy()

    async def end_lost(self, sandbox_id: str, machine: Machine | None, reason: str) -> None:
        """Mark a sandbox whose VM is gone or can't go on as lost, and end what is left of the VM.

        Its lock is held. What can't be recorded now is recorded later, as in `unclaim`.
        """
        log.error("sandbox lost", sandbox=sandbox_id, reason=reason)
        self.live.remove(sandbox_id)
        await self.telemetry.leave(sandbox_id)
        self.telemetry.forget(sandbox_id)
        try:
            await self._now_or_later(sandbox_id, lambda c: store.lose(c, sandbox_id, LIVE, reason))
        finally:
            if machine is not None:
                await self.machines.destroy(machine)

    async def go_on(
        self, sandbox: Sandbox, machine: Machine, operation: Operation, error: BaseException
    ) -> None:
        """After an error the VM runs again and the sandbox is as before, or lost if it can't run.

        A VM that stood still for want of room stays so: `Room` sees to it.
        """
        if machine.instance.no_space.is_set():
            await self.unclaim(sandbox.id, operation)
            return
        try:
            released = await capturing.release(machine)
        except AenvError as failure:
            await self.end_lost(sandbox.id, machine, f"{error}; and it could not go on: {failure}")
            return
        self.live.reopen(sandbox.id)
        await self.unclaim(sandbox.id, operation)
        if not released:
            self.tasks.start(self.release_later(sandbox.id, machine))

    async def release_later(self, sandbox_id: str, machine: Machine) -> None:
        """`insist` with a VM that was to be captured."""
        await self.insist(sandbox_id, machine, functools.partial(capturing.release, machine))

    async def insist(self, sandbox_id: str, machine: Machine, release: Callable[[], Awaitable[bool]]) -> None:
        """Ask a guest that didn't answer in time again to go on, in between others' operations.

        It may yet do what it was told before that, to stop its processes. Returns when `release` was heard,
        or the sandbox has given the machine up.
        """
        for _ in range(ATTEMPTS):
            await asyncio.sleep(RETRY_SECONDS)
            async with self.locks.hold(sandbox_id):
                if self.closing or self.live.machine(sandbox_id) is not machine:
                    return
                try:
                    if await release():
                        return
                except AenvError as error:
                    log.warning("a VM can't be asked to go on", sandbox=sandbox_id, error=str(error))
        log.error(
            "processes may stand still: the agent isn't asked any more; "
            "pause it, then resume it without memory",
            sandbox=sandbox_id,
            attempts=ATTEMPTS,
        )

    async def machine_of(self, sandbox: Sandbox) -> Machine:
        """The live machine of a claimed sandbox. Without one the sandbox is lost: SandboxNotFound."""
        machine = self.live.machine(sandbox.id)
        if machine is None:
            await self.end_lost(sandbox.id, None, "its VM is gone")
            raise SandboxNotFound(sandbox.id)
        return machine

    async def tidy(self) -> None:
        """Remove old records of lost sandboxes, and captures that nothing needs any more.

        Failures are logged, the next time may do.
        """
        try:
            before = time.time() - LOST_KEPT_SECONDS
            await self.database.run(lambda c: store.forget_lost(c, before))
            await self.captures.collect()
        except (AenvError, OSError) as error:
            log.error("captures can't be removed", error=repr(error))


def _visible(connection: sqlite3.Connection, sandbox_id: str) -> Sandbox:
    found = store.get(connection, sandbox_id) if ids.is_sandbox_id(sandbox_id) else None
    if found is not None and found.state is State.LOST:
        raise SandboxLost(sandbox_id, found.reason or "nobody knows why")
    if found is None or found.state not in VISIBLE:
        raise SandboxNotFound(sandbox_id)
    return found


def _unclaim(sandbox_id: str, operation: Operation, connection: sqlite3.Connection) -> None:
    transition = TRANSITIONS[operation]
    failed = transition.failed
    if failed is None:
        store.delete(connection, sandbox_id)
    elif failed is State.LOST:
        store.lose(connection, sandbox_id, {transition.via}, f"{operation} failed half-way")
    else:
        store.change(connection, sandbox_id, {transition.via}, state=failed)
