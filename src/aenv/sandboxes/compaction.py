"""Keeps what sandboxes and snapshots have on disk in proportion to what is in them, in the background.

Every capture leaves layers behind. A running sandbox's VM tightens what it stands on while it runs; the
capture of a paused one, or of a snapshot, is replaced by a tighter one of the same state. Whatever a client
does meanwhile comes first: then the work was for nothing, and the next capture is another occasion.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

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
from aenv.templates import store as templates_store

log = structlog.get_logger()

RETRY_SECONDS = 10.0
"""Rest before the database is asked again what there is."""


class Compaction:
    """Looks at sandboxes that were started or captured, and at snapshots, one at a time, in quiet moments."""

    def __init__(self, core: Core, runtime: Runtime, reserve: Reserve) -> None:
        self._core = core
        self._runtime = runtime
        self._reserve = reserve
        self._waiting: dict[tuple[Callable[[str], Awaitable[None]], str], None] = {}
        """What is to be done next, and with which sandbox or build."""
        self._wanted = asyncio.Event()
        core.on_captured = self.want
        core.on_built = self.want_build
        core.on_admitted.append(lambda sandbox_id, _machine: self._want(self._compact_started, sandbox_id))

    def want(self, sandbox_id: str) -> None:
        """Say that a sandbox may have become wasteful."""
        self._want(self._compact, sandbox_id)

    def want_build(self, build_id: str) -> None:
        """Say that a build may be wasteful."""
        self._want(self._compact_build, build_id)

    def _want(self, work: Callable[[str], Awaitable[None]], what: str) -> None:
        self._waiting[work, what] = None
        self._wanted.set()

    async def run(self) -> None:
        """Work until cancelled; begins with all builds and all sandboxes that are paused."""
        await self._want_all()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._waiting:
                await self._core.activity.quiet()
                work, what = next(iter(self._waiting))
                del self._waiting[work, what]
                await self._try(work, what)

    async def _want_all(self) -> None:
        def known(connection: sqlite3.Connection) -> tuple[list[Sandbox], list[str]]:
            return store.in_states(connection, {State.PAUSED}), templates_store.build_ids(connection)

        while True:
            try:
                paused, builds = await self._core.database.run(known)
            except StorageFailure as error:
                log.warning("nothing is compacted yet", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                for sandbox in paused:
                    self.want(sandbox.id)
                for build_id in builds:
                    self.want_build(build_id)
                return

    async def _try(self, work: Callable[[str], Awaitable[None]], what: str) -> None:
        try:
            await work(what)
        except (AenvError, OSError) as error:
            log.warning("a capture can't be compacted", of=what, error=str(error))
        except Exception as error:  # noqa: BLE001 (one that can't be compacted mustn't keep the others)
            unexpected.note("compaction", "a capture can't be compacted", error, of=what)

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

    async def _compact_started(self, sandbox_id: str) -> None:
        """Tighten what a VM stands on that would hand on a long chain with its first capture.

        As much is borne as with a snapshot, which is compacted once, and not in all that is started from it.
        """
        core = self._core
        sandbox = await core.database.run(lambda c: store.get(c, sandbox_id))
        machine = core.live.machine(sandbox_id)
        if sandbox is None or machine is None:
            return
        capture = await core.captures.get(sandbox.capture_id)
        long = await self._runtime.is_wasteful(capture, kept=True)
        if long and await asyncio.to_thread(self._fits, capture):
            await self._tighten(sandbox_id, machine)

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
        """Let a sandbox be paused to a tighter capture, if it still is to this one."""
        core = self._core

        def is_current(connection: sqlite3.Connection) -> bool:
            now = store.get(connection, sandbox.id)
            return now is not None and now.state is State.PAUSED and now.capture_id == sandbox.capture_id

        def change(connection: sqlite3.Connection, capture_id: str) -> None:
            store.change(connection, sandbox.id, {State.PAUSED}, capture_id=capture_id)

        async def swap(record: Callable[[], Awaitable[bool]]) -> bool:
            async with core.locks.hold(sandbox.id):
                recorded = await record()
                kept = core.starter.stopped.remove(sandbox.id) if recorded else None
            if kept is not None:  # it goes on from the old capture's files
                await core.machines.destroy(kept)
            return recorded

        if await self._swap(capture, is_current, change, swap):
            log.info("the capture of a paused sandbox was compacted", sandbox=sandbox.id)

    async def _compact_build(self, build_id: str) -> None:
        """Let a build have a tighter capture. Sandboxes that were started from the old one keep that."""
        core = self._core
        old = await core.database.run(lambda c: templates_store.capture_of(c, build_id))
        if old is None:
            return
        capture = await core.captures.get(old)
        # Hot VMs made from it are given up, so as much is borne as with a kept VM.
        if not await self._runtime.is_wasteful(capture, kept=True):
            return
        if not await asyncio.to_thread(self._fits, capture):
            return

        def is_current(connection: sqlite3.Connection) -> bool:
            return templates_store.capture_of(connection, build_id) == old

        def change(connection: sqlite3.Connection, capture_id: str) -> None:
            templates_store.set_capture(connection, build_id, capture_id)

        if await self._swap(capture, is_current, change, lambda record: record()):
            core.starter.hot.forget(old)
            log.info("the capture of a build was compacted", build=build_id)

    async def _swap(
        self,
        capture: Capture,
        is_current: Callable[[sqlite3.Connection], bool],
        change: Callable[[sqlite3.Connection, str], None],
        swap: Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]],
    ) -> bool:
        """Make a tighter capture of the same state, and record it by `change` if the old one `is_current`.

        `swap` does so by awaiting what it is called with. Returns whether it was done.
        """
        core = self._core
        capture_id, folder = core.captures.new()
        recorded = False

        async def record(tight: Capture) -> bool:
            def transaction(connection: sqlite3.Connection) -> bool:
                if not is_current(connection):
                    return False
                core.captures.insert(connection, capture_id, tight)
                change(connection, capture_id)
                return True

            nonlocal recorded
            recorded = await core.database.run(transaction)
            return recorded

        try:
            tight = await self._runtime.compact(capture, folder)
            await core.captures.sync(tight)
            await finish(swap(lambda: record(tight)))
        except (AenvError, OSError):
            if await core.database.run(is_current):
                raise
            log.debug("a capture went while it was compacted")
        finally:
            if not recorded:
                await finish(core.captures.discard(capture_id))
        if recorded:
            await core.tidy()
        return recorded
