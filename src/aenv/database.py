"""The SQLite database of all records: one connection, used by one thread.

A transaction is a plain function of a connection that runs whole in that thread, so nothing can come
between its statements. Once begun it ends, even if the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aenv.durable import sync
from aenv.errors import HostNotReady, NoSpace, StorageFailure

T = TypeVar("T")

# Records are JSON, so that a new field needs no new column; what queries need are generated columns.
_VERSION_1 = """
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

# Templates get several builds, with tags that point to them; the old record was a template with one build.
# The latest assignment of a tag counts, the ones before are its history.
_VERSION_2 = """
ALTER TABLE templates RENAME TO old_templates;
DROP INDEX templates_capture;

CREATE TABLE templates (
    id TEXT PRIMARY KEY,
    name TEXT UNIQUE,
    namespace TEXT,
    public INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    spawn_count INTEGER NOT NULL DEFAULT 0,
    last_spawned_at REAL
);
CREATE TABLE builds (
    record TEXT NOT NULL,
    id TEXT GENERATED ALWAYS AS (json_extract(record, '$.id')) STORED NOT NULL UNIQUE,
    capture_id TEXT GENERATED ALWAYS AS (json_extract(record, '$.capture_id')) STORED NOT NULL,
    created_at REAL GENERATED ALWAYS AS (json_extract(record, '$.created_at')) STORED NOT NULL,
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE
);
CREATE INDEX builds_template ON builds (template_id);
CREATE INDEX builds_capture ON builds (capture_id);
CREATE TABLE tag_assignments (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    build_id TEXT NOT NULL,
    assigned_at REAL NOT NULL
);
CREATE INDEX tag_assignments_tag ON tag_assignments (template_id, tag, sequence);
CREATE VIEW current_tags AS SELECT * FROM tag_assignments
    WHERE sequence IN (SELECT max(sequence) FROM tag_assignments GROUP BY template_id, tag);

INSERT INTO templates (id, name, namespace, public, created_at, updated_at)
    SELECT id, name, iif(record ->> '$.source_sandbox_id' IS NULL, NULL, 'default'),
        record ->> '$.source_sandbox_id' IS NULL, created_at, record ->> '$.updated_at'
    FROM old_templates;
INSERT INTO builds (template_id, record)
    SELECT id, json_object('id', record ->> '$.build_id', 'capture_id', capture_id,
        'resources', record -> '$.resources', 'created_at', record -> '$.updated_at',
        'source_sandbox_id', record ->> '$.source_sandbox_id')
    FROM old_templates;
INSERT INTO tag_assignments (id, template_id, tag, build_id, assigned_at)
    SELECT record ->> '$.build_id', id, 'default', record ->> '$.build_id', record ->> '$.updated_at'
    FROM old_templates ORDER BY created_at;
DROP TABLE old_templates;

CREATE TABLE idempotency_keys (
    key TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    request TEXT NOT NULL,
    sandbox TEXT NOT NULL
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
"""

# Disks that can be made again are found by what they were made from.
_VERSION_3 = """
CREATE TABLE cached_disks (
    key TEXT PRIMARY KEY,
    capture_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL
);
CREATE INDEX cached_disks_capture ON cached_disks (capture_id);
"""

# How builds of templates go, and how those went that came to nothing. A template may have none that is ready.
_VERSION_4 = """
CREATE TABLE build_jobs (
    record TEXT NOT NULL,
    id TEXT GENERATED ALWAYS AS (json_extract(record, '$.id')) STORED NOT NULL UNIQUE,
    status TEXT GENERATED ALWAYS AS (json_extract(record, '$.status')) STORED NOT NULL,
    updated_at REAL GENERATED ALWAYS AS (json_extract(record, '$.updated_at')) STORED NOT NULL,
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE
);
CREATE INDEX build_jobs_template ON build_jobs (template_id);
CREATE INDEX build_jobs_status ON build_jobs (status, updated_at);
CREATE INDEX builds_key ON builds (json_extract(record, '$.key'), created_at);
"""

_MIGRATIONS = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
"""Each makes its version of the schema from the one before; none has a semicolon within a statement."""


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

        Raises StorageFailure if the database can't do it, NoSpace on a full disk; nothing has changed then.
        """

        def whole() -> T:
            try:
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    return transaction(self._connection)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise NoSpace("the server's database: the host's disk is full") from error
                raise StorageFailure(f"the server's database: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, whole)

    async def flush(self) -> None:
        """Make all transactions so far survive a power cut. Raises OSError.

        They are in SQLite's write-ahead log until it has moved them, durably, into the database itself.
        """
        await asyncio.to_thread(sync, self._log)

    async def close(self) -> None:
        """Close the connection after what is queued."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # NORMAL: a killed server loses nothing; a power cut may lose what wasn't flushed, never consistency.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            _migrate(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise HostNotReady(f"can't use the database {path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version, inside a transaction. Raises HostNotReady if it is newer."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= len(_MIGRATIONS):
        raise HostNotReady(f"{path} has format {version}, this server knows {len(_MIGRATIONS)}: upgrade it")
    for script in _MIGRATIONS[version:]:
        # executescript would commit first.
        for statement in script.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={len(_MIGRATIONS)}")
