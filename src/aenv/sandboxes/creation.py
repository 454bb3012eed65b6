"""Sandboxes come to life: create, resume, connect."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from aenv import ids, timings
from aenv.errors import ResumeRefused
from aenv.sandboxes import store
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import CreateSandbox, Sandbox, Template
from aenv.sandboxes.starting import Meet
from aenv.sandboxes.states import Operation, State
from aenv.templates import store as templates_store


class Creation:
    """Operations that end with a running VM."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(self, request: CreateSandbox) -> Sandbox:
        """Start a sandbox from a template or snapshot."""
        self._core.check_timeout(request.timeout)

        def insert(connection: sqlite3.Connection) -> tuple[Sandbox, bool]:
            template = templates_store.resolve(connection, request.template)
            sandbox = _new(request, template)
            store.insert(connection, sandbox)
            templates_store.note_spawn(connection, template.id, sandbox.started_at)
            return sandbox, self._core.captures.has_memory(connection, sandbox.capture_id)

        async def work() -> Sandbox:
            with timings.operation("create"):
                sandbox, has_memory = await self._core.database.run(insert)
                return await self.start(sandbox, hot=has_memory, group="create")

        return await self._core.whole(work())

    async def start(
        self, sandbox: Sandbox, *, hot: bool, group: str, together: Meet | None = None
    ) -> Sandbox:
        """Start the VM of a row in state `creating`; on failure the row is gone.

        `hot`: the capture will be asked for again, so it is worth a hot VM. `group`: of starts that take
        turns with others. `together` is awaited before the vCPUs run.
        """
        started = self._started(sandbox, Operation.CREATE, group, hot=hot, together=together)
        async with self._core.locks.hold(sandbox.id), started as machine:
            return await self._core.publish(sandbox, machine, Operation.CREATE, sandbox.timeout)

    async def resume(
        self, sandbox_id: str, timeout: float, auto_pause: bool | None, *, memory: bool, group: str = "resume"
    ) -> Sandbox:
        """Resume a paused sandbox with a new deadline, holding its lock; without `memory` it is rebooted.

        Raises ResumeRefused if it has a memory that is of no use.
        """
        with timings.operation("resume"):
            return await self._resume(sandbox_id, timeout, auto_pause, group, memory=memory)

    async def _resume(
        self, sandbox_id: str, timeout: float, auto_pause: bool | None, group: str, *, memory: bool
    ) -> Sandbox:
        core = self._core
        sandbox = await core.claim(sandbox_id, Operation.RESUME)
        if memory and sandbox.pause_mode == "full" and not sandbox.memory_is_usable:
            await core.unclaim(sandbox_id, Operation.RESUME)
            raise ResumeRefused(
                f"the guest agent of sandbox {sandbox_id} didn't answer when it was paused: "
                "resume it from its disk, without memory"
            )
        changes = {} if auto_pause is None else {"auto_pause": auto_pause}
        started = self._started(sandbox, Operation.RESUME, group, hot=False, reboot=not memory)
        async with started as machine:
            return await core.publish(sandbox, machine, Operation.RESUME, timeout, **changes)

    @asynccontextmanager
    async def _started(
        self,
        sandbox: Sandbox,
        operation: Operation,
        group: str,
        *,
        hot: bool,
        reboot: bool = False,
        together: Meet | None = None,
    ) -> AsyncIterator[Machine]:
        """A machine for the sandbox, which counts as running while the block publishes it.

        If there is no room for it, or it can't be started, the sandbox is as before.
        """
        core = self._core
        with ExitStack() as room:
            try:
                room.enter_context(core.admission.reserve(sandbox.resources))
                machine = await core.starter.start(
                    sandbox, hot=hot, group=group, reboot=reboot, together=together
                )
            except BaseException:
                await core.unclaim(sandbox.id, operation)
                raise
            yield machine


def _new(request: CreateSandbox, template: Template) -> Sandbox:
    """The record of a sandbox that is about to start."""
    now = time.time()
    private = not request.network.get("allowPublicTraffic", True)
    return Sandbox(
        id=ids.new_sandbox_id(),
        template_id=template.id,
        alias=template.name,
        state=State.CREATING,
        started_at=now,
        end_at=now + request.timeout,
        timeout=request.timeout,
        auto_pause=request.auto_pause,
        auto_pause_memory=request.auto_pause_memory,
        auto_resume=request.auto_resume,
        resources=template.build.resources,
        capture_id=template.build.capture_id,
        build_id=template.build.id,
        envd_token=ids.new_token() if request.secure else None,
        traffic_token=ids.new_token() if private else None,
        metadata=request.metadata,
        env=request.env,
        defaults=template.build.defaults,
        network=request.network,
        allow_internet_access=request.allow_internet_access,
    )


def child_of(parent: Sandbox, capture_id: str, timeout: float | None) -> Sandbox:
    """The record of a fork's child: the parent's, with an identity of its own."""
    now = time.time()
    granted = parent.timeout if timeout is None else timeout
    return dataclasses.replace(
        parent,
        id=ids.new_sandbox_id(),
        state=State.CREATING,
        started_at=now,
        timeout=granted,
        end_at=now + granted,
        capture_id=capture_id,
        envd_token=None if parent.envd_token is None else ids.new_token(),
        traffic_token=None if parent.traffic_token is None else ids.new_token(),
        instance_id=None,
    )
