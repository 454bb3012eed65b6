"""Creates that can be sent again: a key stands for one request and the sandbox that it made."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable

import structlog
from pydantic import TypeAdapter

from aenv.database import Database
from aenv.errors import KeyReused, StorageFailure
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.tasks import KeyedLocks

log = structlog.get_logger()

KEPT_SECONDS = 24 * 3600.0
"""How long an answer is kept."""

_REQUEST = TypeAdapter(CreateSandbox)
_SANDBOX = TypeAdapter(Sandbox)


class IdempotencyKeys:
    """Remembers what was created under which key, for a day."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks = KeyedLocks()

    async def once(
        self, key: str, request: CreateSandbox, create: Callable[[CreateSandbox], Awaitable[Sandbox]]
    ) -> Sandbox:
        """The sandbox as it was created under this key, now or before.

        Requests with one key take turns. Only a success is remembered, so that a failure costs the key
        nothing. Raises KeyReused if the key belongs to another request.
        """
        async with self._locks.hold(key):
            known = await self._database.run(lambda c: _get(c, key))
            if known is not None:
                # Read back, not compared as text: a record of an older version has fewer fields.
                if _REQUEST.validate_json(known[0]) != _REQUEST.validate_json(_REQUEST.dump_json(request)):
                    raise KeyReused(key)
                return _SANDBOX.validate_json(known[1])
            sandbox = await create(request)
            try:
                await self._database.run(lambda c: _put(c, key, request, sandbox))
            except StorageFailure as error:  # the sandbox runs: its owner must hear of it
                log.error("an idempotency key can't be kept", sandbox=sandbox.id, error=str(error))
            return sandbox


def _get(connection: sqlite3.Connection, key: str) -> tuple[str, str] | None:
    row: tuple[str, str] | None = connection.execute(
        "SELECT request, sandbox FROM idempotency_keys WHERE key = ? AND created_at > ?",
        (key, time.time() - KEPT_SECONDS),
    ).fetchone()
    return row


def _put(connection: sqlite3.Connection, key: str, request: CreateSandbox, sandbox: Sandbox) -> None:
    now = time.time()
    connection.execute("DELETE FROM idempotency_keys WHERE created_at <= ?", (now - KEPT_SECONDS,))
    connection.execute(
        "INSERT INTO idempotency_keys (key, created_at, request, sandbox) VALUES (?, ?, ?, ?)",
        (key, now, _REQUEST.dump_json(request).decode(), _SANDBOX.dump_json(sandbox).decode()),
    )
