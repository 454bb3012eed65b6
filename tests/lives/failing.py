"""A database that notes what happens to records, and that can be told to be full for a moment."""

from __future__ import annotations

import contextvars
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aenv.database import Database
from aenv.errors import StorageFailure

T = TypeVar("T")

_NOTE_MOVES = """
CREATE TABLE IF NOT EXISTS moves (source TEXT, target TEXT)

CREATE TRIGGER IF NOT EXISTS inserted AFTER INSERT ON sandboxes
    BEGIN INSERT INTO moves VALUES ('gone', NEW.record ->> '$.state'); END

CREATE TRIGGER IF NOT EXISTS updated AFTER UPDATE ON sandboxes
    BEGIN INSERT INTO moves VALUES (OLD.record ->> '$.state', NEW.record ->> '$.state'); END

CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON sandboxes
    BEGIN INSERT INTO moves VALUES (OLD.record ->> '$.state', 'gone'); END
"""

failing_transaction: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar(
    "failing_transaction", default=None
)
"""Which of the next transactions of this context fails, counted down in place."""


class FailingDatabase(Database):
    """A database that notes every change of a state in the table `moves`."""

    @classmethod
    async def open(cls, path: Path) -> Database:
        """Open it and set the triggers."""
        database = await super().open(path)
        await database.run(_watch)
        return database

    async def run(self, transaction: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction, unless it is the one that fails."""
        if (left := failing_transaction.get()) is not None:
            left[0] -= 1
            if left[0] == 0:
                raise StorageFailure("the server's database: disk is full")
        return await super().run(transaction)


def _watch(connection: sqlite3.Connection) -> None:
    for statement in _NOTE_MOVES.split("\n\n"):
        connection.execute(statement)
