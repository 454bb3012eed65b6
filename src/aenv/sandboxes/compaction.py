"""Keeps what sandboxes have on disk in proportion to what is in them, in the background.

Every capture leaves layers behind. A running sandbox's VM tightens what it stands on while it runs; the
capture of a paused one is replaced by a tighter one. Whatever a client does meanwhile comes first: then the
work was for nothing, and the next capture is another occasion.
"""

from __future__ import annotations

import asyncio
import sqlite3

import structlog

from aenv import unexpected
from aenv.errors import AenvError, StorageFailure
from aenv.runtimes.base import Capture, Runtime
from aenv.sandboxes import store
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.reserve import Reserve
from aenv.sandboxes.states import State
from aenv.tasks import finish

log = structlog.get_logger()

RETRY_SECONDS = 10.0
"""Rest before the database is asked again which sandboxes are paused."""


class Compaction:
    """Looks at sandboxes that were captured, one at a time, in quiet moments."""

    def __init__(self, core: Core, runtime: Runtime, reserve: Reserve) -> None:
        self._core = core
        self._runtime = runtime
        self._reserve = reserve
        self._waiting: dict[str, None] = {}
        self._wanted = asyncio.Event()
        core.on_captured = self.want

    def want(self, sandbox_id: str) -> None:
        """Say that a sandbox may have become wasteful."""
        self._waiting[sandbox_id] = None
        self._wanted.set()

    async def run(self) -> None:
        """Work until cancelled; begins with all that are paused."""
        await self._want_paused()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._waiting:
                await self._core.activity.quiet()
                sandbox_id = next(iter(self._waiting))
                del self._waiting[sandbox_id]
                await self._try(sandbox_id)

    async def _want_paused(self) -> None:
        while True:
            try:
                paused = await self._core.database.run(lambda c: store.in_states(c, {State.PAUSED}))
            except StorageFailure as error:
                log.warning("paused sandboxes aren't compacted yet", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                for sandbox in paused:
                    self.want(sandbox.id)
                return

    async def _try(self, sandbox_id: str) -> None:
        try:
            await self._compact(sandbox_id)
        except (AenvError, OSError) as error:
            log.warning("a sandbox can't be compacted", sandbox=sandbox_id, error=str(error))
        except Exception as error:  # noqa: BLE001 (a sandbox that can't be compacted mustn't keep the others)
            unexpected.note("compaction", "a sandbox can't be compacted", error, sandbox=sandbox_id)

    async def _compact(self, sandbox_id: str) -> None:
        core = self._core
        sandbox = await core.database.run(lambda c: store.get(c, sandbox_id))
        machine = core.live.machine(sandbox_id) or core.starter.stopped.get(sandbox_id)
        if sandbox is None or (machine is None and sandbox.state is not State.PAUSED):
            return
        capture = await core.captures.get(sandbox.capture_id)
        if not await asyncio.to_thread(self._fits, capture):
            return
        if machine is not None:
            await self._tighten(sandbox_id, machine)
        if sandbox.state is State.PAUSED:
            kept = core.starter.stopped.get(sandbox_id) is not None
            if await self._runtime.is_wasteful(capture, kept=kept):
                await self._replace(sandbox, capture)

    def _fits(self, capture: Capture) -> bool:
        """Whether there is room for all of a capture beside it: old and new files need it for a while."""
        return self._reserve.has_room(self._core.captures.taken(capture))

    async def _tighten(self, sandbox_id: str, machine: Machine) -> None:
        try:
            if await machine.instance.compact():
                log.info("the disk of a VM was compacted", sandbox=sandbox_id)
        except (AenvError, OSError) as error:  # it may have been given up meanwhile
            log.warning("the disk of a VM can't be compacted", sandbox=sandbox_id, error=str(error))

    async def _replace(self, sandbox: Sandbox, capture: Capture) -> None:
        """Make a tighter capture and let the sandbox be paused to it, if it still is to the same."""
        core = self._core
        capture_id, folder = core.captures.new()
        recorded = False

        async def swap(tight: Capture) -> None:
            nonlocal recorded
            async with core.locks.hold(sandbox.id):
                recorded = await core.database.run(lambda c: self._record(c, sandbox, capture_id, tight))
                kept = core.starter.stopped.remove(sandbox.id) if recorded else None
            if kept is not None:  # it goes on from the old capture's files
                await core.machines.destroy(kept)

        try:
            tight = await self._runtime.compact(capture, folder)
            await core.captures.sync(tight)
            await finish(swap(tight))
        except (AenvError, OSError):
            if await core.database.run(lambda c: _is_paused_to(c, sandbox)):
                raise
            log.debug("a capture went while it was compacted", sandbox=sandbox.id)
        finally:
            if not recorded:
                await finish(core.captures.discard(capture_id))
        if recorded:
            log.info("the capture of a paused sandbox was compacted", sandbox=sandbox.id)
            await core.tidy()

    def _record(
        self, connection: sqlite3.Connection, sandbox: Sandbox, capture_id: str, tight: Capture
    ) -> bool:
        if not _is_paused_to(connection, sandbox):
            return False
        self._core.captures.insert(connection, capture_id, tight)
        store.change(connection, sandbox.id, {State.PAUSED}, capture_id=capture_id)
        return True


def _is_paused_to(connection: sqlite3.Connection, sandbox: Sandbox) -> bool:
    """Whether the sandbox is still paused, to the same capture."""
    now = store.get(connection, sandbox.id)
    return now is not None and now.state is State.PAUSED and now.capture_id == sandbox.capture_id
