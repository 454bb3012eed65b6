"""What a server does about sandboxes that an earlier one left: nothing is forgotten, nothing leaks.

Before anything is started, `settle` looks for each sandbox's VM and brings every record that has none into a
stable state. When the rest of the server is there, `adopt` goes on with those that live.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from aenv.database import Database
from aenv.errors import AenvError, RuntimeFailure
from aenv.runtimes.base import Place, Runtime
from aenv.sandboxes import store
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import FREEZE_TIMEOUT, GUEST_TIMEOUT, Machine, identity
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import LIVE, TRANSITIONS, State

log = structlog.get_logger()

AT_ONCE: Final = 16
"""Sandboxes adopted at a time."""

ADOPTION_SECONDS: Final = 10.0
"""How long a starting server waits until all are adopted. A VM that doesn't answer keeps only its own clients
waiting for longer."""


@dataclass(frozen=True)
class Survivor:
    """A sandbox whose VM lives, as the earlier server left both."""

    sandbox: Sandbox
    place: Place


async def settle(database: Database, runtime: Runtime, workspace: Path) -> list[Survivor]:
    """Bring the records of all sandboxes without a living VM into a stable state; return the others.

    What ran is lost then, with the reason. A resume under way leaves the sandbox paused, as its capture is
    intact; what was being made or killed is gone. Raises StorageFailure; HostNotReady, before anything
    is changed, if the host isn't as it was for a VM.
    """
    found = await database.run(lambda c: store.in_states(c, LIVE))
    survivors, lost = [], {}
    for sandbox in found:
        try:
            if sandbox.instance_id is None:
                raise RuntimeFailure("it had no VM")
            survivors.append(Survivor(sandbox, await runtime.find(workspace / sandbox.instance_id)))
        except RuntimeFailure as error:
            lost[sandbox.id] = f"it ran when the server ended, and was not there any more afterwards: {error}"
            log.error("sandbox lost", sandbox=sandbox.id, reason=lost[sandbox.id])

    def transaction(connection: sqlite3.Connection) -> int:
        for sandbox in store.in_states(connection, {State.CREATING, State.KILLING}):
            store.delete(connection, sandbox.id)
        for sandbox in store.in_states(connection, {State.RESUMING}):
            store.change(connection, sandbox.id, {State.RESUMING}, state=State.PAUSED)
        for sandbox_id, reason in lost.items():
            store.lose(connection, sandbox_id, LIVE, reason)
        return store.by_state(connection)[State.PAUSED]

    paused = await database.run(transaction)
    if found or paused:
        counts = {"paused": paused, "alive": len(survivors), "lost": len(lost)}
        log.info("sandboxes of an earlier server are here", **counts)
    return survivors


async def adopt(core: Core, survivors: Sequence[Survivor]) -> None:
    """Go on with what lives, side by side; called before any operation.

    Each sandbox's lock is held until it is adopted or lost, so whoever asks for it waits. Returns when all
    are, or after `ADOPTION_SECONDS`.
    """
    turns = asyncio.Semaphore(AT_ONCE)
    tasks = [core.tasks.start(_adopt(core, survivor, turns)) for survivor in survivors]
    if tasks:
        await asyncio.wait(tasks, timeout=ADOPTION_SECONDS)


async def _adopt(core: Core, survivor: Survivor, turns: asyncio.Semaphore) -> None:
    sandbox = survivor.sandbox
    with core.activity.operation():
        async with core.locks.hold(sandbox.id):
            machine = None
            try:
                async with turns:
                    machine = await core.machines.adopt(survivor.place, sandbox.envd_token)
                    await machine.instance.thaw()
            except AenvError as error:
                reason = f"it ran when the server ended, and could not go on afterwards: {error}"
                await core.end_lost(sandbox.id, machine, reason)
                await core.tidy()
                return
            core.admit(sandbox, machine)
            core.telemetry.record(sandbox.id, "adopted", "sandbox goes on after the server came back")
            if sandbox.state is not State.RUNNING:
                await _take_back(core, sandbox, machine)


async def _take_back(core: Core, sandbox: Sandbox, machine: Machine) -> None:
    """What was under way, a capture, did not happen; the user's processes may still be held for it.

    The guest is told what it is told after a resume: its clock may be late by all the time without a server.
    Only then the record says that the sandbox runs: should this server be killed too, the next one does it.
    """
    told = await _tell(sandbox, machine, GUEST_TIMEOUT)
    operation = next(each.operation for each in TRANSITIONS.values() if each.via is sandbox.state)
    await core.unclaim(sandbox.id, operation)
    if not told:
        again = functools.partial(_tell, sandbox, machine, FREEZE_TIMEOUT)
        core.tasks.start(core.insist(sandbox.id, machine, again))


async def _tell(sandbox: Sandbox, machine: Machine, seconds: float) -> bool:
    """Tell the guest who it is and what time it is, and to let processes go on. Whether it answered."""
    try:
        async with asyncio.timeout(seconds):
            await machine.guest.init(identity(sandbox))
    except (AenvError, TimeoutError) as error:
        log.error("the guest agent doesn't let processes go on", sandbox=sandbox.id, error=repr(error))
        return False
    return True
