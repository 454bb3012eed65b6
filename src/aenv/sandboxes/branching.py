"""One capture with three endings: pause stops the VM, snapshot and fork let it go on."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from aenv import ids, timings, unexpected
from aenv.errors import AenvError, InvalidRequest, RuntimeFailure
from aenv.sandboxes import capturing, store
from aenv.sandboxes.capturing import Captured
from aenv.sandboxes.core import Core
from aenv.sandboxes.creation import Creation, child_of
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Build, Sandbox, Template
from aenv.sandboxes.states import TRANSITIONS, Operation, State
from aenv.tasks import Meeting, finish, together
from aenv.templates import store as templates_store
from aenv.templates import tags
from aenv.templates.names import DEFAULT_TAG, TEAM, Name

log = structlog.get_logger()


class Branching:
    """Operations that capture a running VM."""

    def __init__(self, core: Core, creation: Creation) -> None:
        self._core = core
        self._creation = creation

    async def pause(
        self, sandbox_id: str, *, memory: bool, require_healthy_guest: bool, reason: str | None = None
    ) -> None:
        """Capture and stop, holding the lock. On failure the sandbox runs as before, or is lost.

        `reason` is for a pause that nobody asked for.
        """
        with timings.operation("pause"):
            await self._pause(sandbox_id, reason, memory=memory, require_healthy_guest=require_healthy_guest)

    async def _pause(
        self, sandbox_id: str, reason: str | None, *, memory: bool, require_healthy_guest: bool
    ) -> None:
        core = self._core
        sandbox = await core.claim(sandbox_id, Operation.PAUSE)
        machine = await core.machine_of(sandbox)
        last_look = core.telemetry.last_look(sandbox_id)
        core.live.close(sandbox_id)

        def record(connection: sqlite3.Connection, captured: Captured) -> None:
            core.captures.insert(connection, captured.id, captured.capture)
            store.change(
                connection,
                sandbox_id,
                {State.PAUSING},
                state=State.PAUSED,
                end_at=time.time(),
                capture_id=captured.id,
                instance_id=None,
                envd_unresponsive_at_pause=captured.guest_unresponsive,
                pause_mode="full" if memory else "filesystem",
                reason=reason,
            )

        try:
            await together(last_look, machine.instance.prepare())
            captured = await capturing.take(
                machine, core.captures, memory=memory, require_healthy_guest=require_healthy_guest
            )
            async with self._kept(captured):
                await core.database.run(functools.partial(record, captured=captured))
        except BaseException as error:
            await finish(core.go_on(sandbox, machine, Operation.PAUSE, error))
            raise
        core.live.remove(sandbox_id)
        told = "sandbox paused" if reason is None else f"sandbox paused: {reason}"
        core.telemetry.record(sandbox_id, "pause", told, memory=str(memory).lower())
        # A VM whose memory is not to be kept must not come back, and one that lacks room needs it.
        keep = memory and not machine.instance.no_space.is_set()
        given_up = core.starter.stopped.put(sandbox_id, machine) if keep else [machine]
        self._core.tasks.start(self._settle(sandbox_id, given_up, captured))

    async def snapshot(self, sandbox_id: str, name: Name | None, *, memory: bool) -> Template:
        """A snapshot of a running sandbox; a name that a snapshot already has gets a new build."""
        with timings.operation("snapshot"):
            return await self._snapshot(sandbox_id, name, memory=memory)

    async def _snapshot(self, sandbox_id: str, name: Name | None, *, memory: bool) -> Template:
        await self._core.database.run(lambda c: _of_name(c, name))  # a wrong name costs no capture
        async with self._branch(sandbox_id, Operation.SNAPSHOT, memory=memory) as (sandbox, captured):

            def record(connection: sqlite3.Connection) -> Template:
                self._record(connection, sandbox, Operation.SNAPSHOT, captured)
                return _record_snapshot(connection, sandbox, name, captured.id)

            template = await self._core.database.run(record)
            told = "snapshot taken"
            self._core.telemetry.record(sandbox_id, "snapshot", told, snapshot=template.snapshot_id)
        self._core.on_built(template.build.id)
        return template

    async def fork(self, sandbox_id: str, count: int, timeout: float | None) -> Sequence[Sandbox | AenvError]:
        """`count` copies of a running sandbox, started side by side; one result each.

        All are loaded before the first one runs: a guest that runs would take the others' time to load.
        Raises LimitReached if there is no room for even one: then nothing is captured.
        """
        with timings.operation("fork"):
            return await self._fork(sandbox_id, count, timeout)

    async def _fork(
        self, sandbox_id: str, count: int, timeout: float | None
    ) -> Sequence[Sandbox | AenvError]:
        async with self._branch(sandbox_id, Operation.FORK, memory=True) as (parent, captured):
            children = [child_of(parent, captured.id, timeout) for _ in range(count)]

            def record(connection: sqlite3.Connection) -> None:
                self._record(connection, parent, Operation.FORK, captured)
                for child in children:
                    store.insert(connection, child)

            await self._core.database.run(record)
            told = f"sandbox forked {count} times"
            copies = " ".join(child.id for child in children)
            self._core.telemetry.record(sandbox_id, "fork", told, children=copies)
        meeting = Meeting(count)
        return await asyncio.gather(*(self._child(child, sandbox_id, meeting) for child in children))

    async def _child(self, child: Sandbox, parent_id: str, meeting: Meeting) -> Sandbox | AenvError:
        try:
            with timings.operation("child"), meeting.attend() as meet:
                group = f"fork {parent_id}"
                started = await self._creation.start(child, hot=False, group=group, together=meet)
        except AenvError as error:
            return error
        except Exception as error:  # noqa: BLE001 (its siblings run: the caller must hear of them)
            unexpected.note("sandboxes", "a child of a fork can't be started", error, sandbox=child.id)
            return RuntimeFailure(f"a child can't be started: {error}")
        told = f"sandbox is a copy of {parent_id}"
        self._core.telemetry.record(child.id, "forked", told, parent=parent_id)
        return started

    @asynccontextmanager
    async def _branch(
        self, sandbox_id: str, operation: Operation, *, memory: bool
    ) -> AsyncIterator[tuple[Sandbox, Captured]]:
        """Capture a running sandbox and let it go on; the block then records the capture."""
        core = self._core
        async with core.locks.hold(sandbox_id):
            if operation is Operation.FORK:
                core.admission.check((await core.get(sandbox_id)).resources)
            sandbox = await core.claim(sandbox_id, operation)
            machine = await core.machine_of(sandbox)
            try:
                captured = await capturing.take_in_passing(machine, core.captures, memory=memory)
            except BaseException as error:
                await finish(core.go_on(sandbox, machine, operation, error))
                raise
            if not captured.goes_on:
                core.tasks.start(core.release_later(sandbox_id, machine))
            try:
                async with self._kept(captured):
                    yield sandbox, captured
            except BaseException:
                await finish(core.unclaim(sandbox_id, operation))
                raise
            core.tasks.start(self._settle(sandbox_id, [], captured))

    @asynccontextmanager
    async def _kept(self, captured: Captured) -> AsyncIterator[None]:
        """Record a capture in the block; its files are removed if that fails.

        Not if it is cancelled: a transaction once begun ends, and the record may be there.
        """
        try:
            yield
        except Exception:
            await finish(self._core.captures.discard(captured.id))
            raise

    def _record(
        self, connection: sqlite3.Connection, sandbox: Sandbox, operation: Operation, captured: Captured
    ) -> None:
        """Record the capture, and that the sandbox, whose own layers it may depend on, runs on.

        A whole capture names all layers that the next one builds on. One of the disk alone lacks the memory,
        so the sandbox goes on depending on the capture before.
        """
        self._core.captures.insert(connection, captured.id, captured.capture)
        via = TRANSITIONS[operation].via
        changes = {"capture_id": captured.id} if captured.capture.memory else {}
        store.change(connection, sandbox.id, {via}, state=State.RUNNING, **changes)

    async def _settle(self, sandbox_id: str, machines: Sequence[Machine], captured: Captured) -> None:
        """After the answer: end what isn't kept, make the capture durable, then remove what isn't needed."""
        core = self._core
        with core.captures.kept(captured.id):  # the sandbox may be deleted meanwhile
            for machine in machines:
                await core.machines.destroy(machine)
            try:
                await core.captures.sync(captured.capture)
            except OSError as error:
                log.error("a capture can't be made durable", capture=captured.id, error=repr(error))
                return
        await core.tidy()
        core.on_captured(sandbox_id)


def _of_name(connection: sqlite3.Connection, name: Name | None) -> Template | None:
    """The snapshot that has this name (or id). Raises InvalidRequest if a template has it."""
    known = None if name is None else templates_store.get(connection, name.alias)
    if known is not None and not known.is_snapshot:
        raise InvalidRequest(f"the name {known.name!r} belongs to a template: choose another")
    if name is not None and known is None:
        unbuilt = templates_store.unbuilt(connection, name.alias)
        if unbuilt is not None and templates_store.is_being_built(connection, unbuilt):
            raise InvalidRequest(f"the name {name.alias!r} belongs to a template that is being built")
    return known


def _record_snapshot(
    connection: sqlite3.Connection, sandbox: Sandbox, name: Name | None, capture_id: str
) -> Template:
    """A new snapshot, or a new build of the one of that name, under the tag that was asked for."""
    known = _of_name(connection, name)
    if known is None:
        alias = None if name is None else name.alias
        unbuilt = None if alias is None else templates_store.unbuilt(connection, alias)
        template_id = unbuilt or templates_store.add(connection, alias, TEAM, public=False)
    else:
        template_id = known.id
    build = Build(
        ids.new_build_id(), capture_id, sandbox.resources, time.time(), sandbox.id, sandbox.defaults
    )
    tag = DEFAULT_TAG if name is None or name.tag is None else name.tag
    templates_store.add_build(connection, template_id, build)
    tags.assign(connection, template_id, [tag], build.id)
    return templates_store.resolve(connection, f"{template_id}:{tag}")
