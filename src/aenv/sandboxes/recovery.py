"""What a server does about records that an earlier one left: nothing is forgotten, nothing leaks."""

from __future__ import annotations

import sqlite3
import time

import structlog

from aenv.database import Database
from aenv.sandboxes import store
from aenv.sandboxes.states import LIVE, State

log = structlog.get_logger()


async def settle_records(database: Database) -> None:
    """Bring every record into a stable state. Called before any operation, when no VM is left alive.

    A pause that wasn't recorded didn't happen, so what ran is lost; a resume under way leaves the sandbox
    paused, as its capture is intact; what was being made or killed is gone.
    """

    def transaction(connection: sqlite3.Connection) -> tuple[int, int]:
        for sandbox in store.in_states(connection, {State.CREATING, State.KILLING}):
            store.delete(connection, sandbox.id)
        for sandbox in store.in_states(connection, {State.RESUMING}):
            store.change(connection, sandbox.id, {State.RESUMING}, state=State.PAUSED)
        running = store.in_states(connection, LIVE)
        for sandbox in running:
            store.change(
                connection,
                sandbox.id,
                LIVE,
                state=State.LOST,
                reason="the server ended while it ran",
                end_at=time.time(),
                instance_id=None,
            )
        return len(running), len(store.in_states(connection, {State.PAUSED}))

    lost, paused = await database.run(transaction)
    if lost:
        log.warning("sandboxes that ran when the server ended are lost", count=lost)
    if paused:
        log.info("paused sandboxes are here", count=paused)
