"""The SQLite database of all records: one connection, used by one thread.

A transaction is a plain function of a connection that runs whole in that thread, so nothing can come
between its statements. Once begun it ends, even if the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aenv.errors import HostNotReady, StorageFailure

T = TypeVar("T")

SCHEMA_VERSION = 1

# Records are JSON, so that a new field needs no new column; what queries need are generated columns.
_SCHEMA = """
CREATE TABLE sandboxes (
    record TEXT NOT NULL,
    id TEXT GENERATED ALWAYS AS (json_extract(record, '$.id')) STORED NOT NULL UNIQUE,
    state TEXT GENERATED ALWAYS AS (json_extract(record, '$.state')) STORED NOT NULL,
    started_at REAL GENERATED ALWAYS AS (json_extract(record, '$.started_at')) STORED NOT NULL,
    end_at REAL GENERATED ALWAYS AS (json_extract(record, '$.end_at')) STORED NOT NULL,
    template_id TEXT GENERATED ALWAYS AS (json_extract(record, '$.template_id')) STORED NOT NULL,
    capture_id TEXT GENERATED ALWAYS AS (json_extract(record, '$.capture_id')) STORED NOT NULL
);
CREATE INDEX sandboxes_deadline ON sandboxes (state, end_at);
CREATE INDEX sandboxes_order ON sandboxes (started_at, id);
CREATE INDEX sandboxes_capture ON sandboxes (capture_id);

CREATE TABLE templates (
    record TEXT NOT NULL,
    id TEXT GENERATED ALWAYS AS (json_extract(record, '$.id')) STORED NOT NULL UNIQUE,
    name TEXT GENERATED ALWAYS AS (json_extract(record, '$.name')) STORED UNIQUE,
    created_at REAL GENERATED ALWAYS AS (json_extract(record, '$.created_at')) STORED NOT NULL,
    capture_id TEXT GENERATED ALWAYS AS (json_extract(record, '$.capture_id')) STORED NOT NULL
);
CREATE INDEX templates_capture ON templates (capture_id);

CREATE TABLE captures (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE capture_layers (
    capture_id TEXT NOT NULL REFERENCES captures (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    PRIMARY KEY (capture_id, path)
);
CREATE INDEX capture_layers_path ON capture_layers (path);
"""


class Database:
    """Runs transactions. Make one with `open`; `close` it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._connection = connection
        self._thread = thread

    @classmethod
    async def open(cls, path: Path) -> Database:
        """Open or make the database at `path`.

        Raises HostNotReady if the file is no database or was written by a newer version.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, connection, thread)

    async def run(self, transaction: Callable[[sqlite3.Connection], T]) -> T:
        """Run `transaction`; commit if it returns, roll back if it raises.

        Raises StorageFailure if the database can't do it, as on a full disk; nothing has changed then.
        """

        def whole() -> T:
            try:
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    return transaction(self._connection)
            except sqlite3.DatabaseError as error:
                raise StorageFailure(f"the server's database: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, whole)

    async def flush(self) -> None:
        """Make all transactions so far survive a power cut. Raises OSError.

        They are in SQLite's write-ahead log until it has moved them, durably, into the database itself.
        """
        await asyncio.to_thread(flush_file, self._log)

    async def close(self) -> None:
        """Close the connection after what is queued."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()


def flush_file(path: Path) -> None:
    """Force a file, or the names in a folder, to the device. Blocking. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # NORMAL: a killed server loses nothing; a power cut may lose what wasn't flushed, never consistency.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise HostNotReady(f"{path} has format {version}, this server knows {SCHEMA_VERSION}: upgrade it")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise HostNotReady(f"can't use the database {path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection
