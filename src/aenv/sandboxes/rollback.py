"""Putting a running sandbox back to one of its snapshots, in place."""

from __future__ import annotations

import dataclasses
import sqlite3
import time

from aenv import timings
from aenv.errors import InvalidRequest, SandboxNotFound, SnapshotNotFound, TemplateNotFound
from aenv.sandboxes import store
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Sandbox, Template
from aenv.sandboxes.states import TRANSITIONS, Operation, State
from aenv.tasks import finish
from aenv.templates import store as templates_store


class Rollback:
    """Starts a VM from the snapshot beside the sandbox's own, and then lets it take that one's place.

    The old VM stands still meanwhile, so the two never run at once; it is given up only when the new one
    is recorded. Until then a failure leaves the sandbox as it was.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def roll_back(self, sandbox_id: str, name: str) -> None:
        """Put the sandbox back to the snapshot `name`, which must have been taken from it.

        Its id, tokens, deadline, environment and metadata stay as they are.
        """
        core = self._core
        async with core.locks.hold(sandbox_id):
            await core.get(sandbox_id)
            snapshot = await self._own_snapshot(sandbox_id, name)
            with timings.operation("rollback"), core.captures.kept(snapshot.build.capture_id):
                old = await self._replace(sandbox_id, snapshot)
        core.tasks.start(self._give_up(old))

    async def _own_snapshot(self, sandbox_id: str, name: str) -> Template:
        try:
            snapshot = await self._core.database.run(lambda c: templates_store.resolve(c, name))
        except TemplateNotFound as error:
            raise SnapshotNotFound(name) from error
        if snapshot.build.source_sandbox_id != sandbox_id:
            raise InvalidRequest(
                f"{name!r} is no snapshot of sandbox {sandbox_id}: create a sandbox from it instead"
            )
        return snapshot

    async def _replace(self, sandbox_id: str, snapshot: Template) -> Machine:
        """Let a VM in the snapshot's state take the place of the sandbox's own, which is returned, frozen."""
        core = self._core
        await core.telemetry.last_look(sandbox_id)
        sandbox = await core.claim(sandbox_id, Operation.ROLLBACK)
        old = await core.machine_of(sandbox)
        core.live.close(sandbox_id)
        await core.telemetry.leave(sandbox_id)
        began = time.time()
        beside = dataclasses.replace(sandbox.resources, cpu_count=0)  # the old VM's vCPUs stand still
        try:
            await old.instance.freeze()
            with core.admission.count(beside):
                new = await self._start(sandbox, snapshot.build.capture_id)
                changed = await self._record(sandbox_id, snapshot.build.capture_id, new)
        except BaseException as error:
            await finish(core.go_on(sandbox, old, Operation.ROLLBACK, error))
            raise
        core.live.remove(sandbox_id)
        core.telemetry.rolled_back(sandbox_id, began, snapshot.snapshot_id)
        core.admit(changed, new)
        return old

    async def _start(self, sandbox: Sandbox, capture_id: str) -> Machine:
        core = self._core
        restorable = await core.database.run(lambda c: core.captures.has_memory(c, capture_id))
        # Whoever goes back to a state often does so again: it is worth a hot VM.
        target = dataclasses.replace(sandbox, capture_id=capture_id)
        return await core.starter.start(target, hot=restorable, group="rollback")

    async def _record(self, sandbox_id: str, capture_id: str, machine: Machine) -> Sandbox:
        """Record that the machine is the sandbox's; it is destroyed if that fails."""

        def record(connection: sqlite3.Connection) -> Sandbox:
            changed = store.change(
                connection,
                sandbox_id,
                {TRANSITIONS[Operation.ROLLBACK].via},
                state=State.RUNNING,
                capture_id=capture_id,
                instance_id=machine.id,
            )
            if changed is None:
                raise SandboxNotFound(sandbox_id)
            return changed

        try:
            return await self._core.database.run(record)
        except Exception:
            await finish(self._core.machines.destroy(machine))
            raise

    async def _give_up(self, machine: Machine) -> None:
        await self._core.machines.destroy(machine)
        await self._core.tidy()
