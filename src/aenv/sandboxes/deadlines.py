"""Deadlines: when they are, and what happens at one."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

import structlog

from aenv.errors import AenvError, SandboxNotFound, SandboxNotRunning, ShuttingDown, StorageFailure
from aenv.sandboxes import store
from aenv.sandboxes.core import Core
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State

log = structlog.get_logger()

TICK_SECONDS = 0.5
"""How late a deadline may be noticed."""

AT_ONCE = 8
"""Sandboxes handled at their deadlines at a time. Others wait, and may still be kept alive meanwhile."""

RETRY_SECONDS = 10.0
"""When to try again what failed at a deadline."""


class Deadlines:
    """Changes and watches deadlines. A change and the expiry both need the sandbox's lock: one wins."""

    def __init__(self, core: Core, expire: Callable[[str], Awaitable[None]]) -> None:
        self._core = core
        self._expire = expire
        self._not_before: dict[str, float] = {}
        """Sandboxes being handled (infinity) or that failed (when to try again)."""
        self._handling = asyncio.Semaphore(AT_ONCE)

    async def set(self, sandbox_id: str, timeout: float) -> None:
        """Set the deadline to `timeout` seconds from now; may shorten. Raises SandboxNotRunning if paused."""
        self._core.check_timeout(timeout)
        async with self._core.locks.hold(sandbox_id):
            await self._running(sandbox_id)
            await self._change(sandbox_id, timeout, time.time() + timeout)

    async def refresh(self, sandbox_id: str, duration: float) -> None:
        """Extend the deadline to at least `duration` seconds from now. Raises SandboxNotRunning if paused."""
        self._core.check_timeout(duration)
        async with self._core.locks.hold(sandbox_id):
            await self.extend(await self._running(sandbox_id), duration)

    async def extend(self, sandbox: Sandbox, timeout: float) -> Sandbox:
        """Move the deadline of a running sandbox later, never sooner; its lock is held."""
        end_at = time.time() + timeout
        if end_at <= sandbox.end_at:
            return sandbox
        return await self._change(sandbox.id, timeout, end_at)

    async def has_passed(self, sandbox_id: str) -> bool:
        """Whether the sandbox runs and its deadline is behind it; its lock is held."""
        sandbox = await self._core.database.run(lambda c: store.get(c, sandbox_id))
        return sandbox is not None and sandbox.state is State.RUNNING and sandbox.end_at <= time.time()

    async def _running(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._core.get(sandbox_id)
        if sandbox.state is not State.RUNNING:
            raise SandboxNotRunning(sandbox_id)
        return sandbox

    async def _change(self, sandbox_id: str, timeout: float, end_at: float) -> Sandbox:
        changed = await self._core.database.run(
            lambda c: store.change(c, sandbox_id, {State.RUNNING}, timeout=timeout, end_at=end_at)
        )
        if changed is None:
            raise SandboxNotFound(sandbox_id)
        return changed

    async def run(self) -> None:
        """Watch until cancelled; those that expire together are handled side by side, `AT_ONCE` of them."""
        while True:
            now = time.time()
            try:
                overdue = await self._core.database.run(functools.partial(store.expired, now=now))
            except StorageFailure as error:
                log.error("deadlines can't be read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._not_before = {
                sandbox_id: when
                for sandbox_id, when in self._not_before.items()
                if when == float("inf") or sandbox_id in overdue
            }
            for sandbox_id in overdue:
                if self._not_before.get(sandbox_id, 0.0) <= now:
                    self._not_before[sandbox_id] = float("inf")
                    self._core.tasks.start(self._handle(sandbox_id))
            await asyncio.sleep(TICK_SECONDS)

    async def _handle(self, sandbox_id: str) -> None:
        try:
            async with self._handling:
                await self._expire(sandbox_id)
        except ShuttingDown:
            log.debug("the server stops before a deadline was kept", sandbox=sandbox_id)
        except AenvError as error:
            log.error("a deadline couldn't be kept", sandbox=sandbox_id, error=str(error))
        finally:
            self._not_before[sandbox_id] = time.time() + RETRY_SECONDS
