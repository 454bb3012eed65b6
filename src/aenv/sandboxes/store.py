"""Sandbox records in the database. The functions run inside a transaction of `aenv.database`."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Collection
from typing import Any

from pydantic import TypeAdapter

from aenv.sandboxes.models import Sandbox, SandboxFilter
from aenv.sandboxes.states import State

_RECORD = TypeAdapter(Sandbox)


def _read(row: tuple[str]) -> Sandbox:
    return _RECORD.validate_json(row[0])


def _write(sandbox: Sandbox) -> str:
    return _RECORD.dump_json(sandbox).decode()


def insert(connection: sqlite3.Connection, sandbox: Sandbox) -> None:
    """Add a new record."""
    connection.execute("INSERT INTO sandboxes (record) VALUES (?)", (_write(sandbox),))


def get(connection: sqlite3.Connection, sandbox_id: str) -> Sandbox | None:
    """The record, in whatever state."""
    row = connection.execute("SELECT record FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
    return None if row is None else _read(row)


def change(
    connection: sqlite3.Connection, sandbox_id: str, sources: Collection[State], **changes: Any
) -> Sandbox | None:
    """Compare and set: change fields if the state is one of `sources`; None if it isn't or no row is."""
    sandbox = get(connection, sandbox_id)
    if sandbox is None or sandbox.state not in sources:
        return None
    changed = dataclasses.replace(sandbox, **changes)
    connection.execute("UPDATE sandboxes SET record = ? WHERE id = ?", (_write(changed), sandbox_id))
    return changed


def lose(connection: sqlite3.Connection, sandbox_id: str, sources: Collection[State], reason: str) -> None:
    """Its VM is gone: if the state is one of `sources` the sandbox is lost; reason and VM stay known."""
    change(connection, sandbox_id, sources, state=State.LOST, reason=reason, end_at=time.time())


def delete(connection: sqlite3.Connection, sandbox_id: str) -> None:
    """Remove the record."""
    connection.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))


def forget_lost(connection: sqlite3.Connection, before: float) -> None:
    """Remove the records of sandboxes lost before that time."""
    connection.execute("DELETE FROM sandboxes WHERE state = ? AND end_at < ?", (State.LOST, before))


def find(connection: sqlite3.Connection, query: SandboxFilter) -> list[Sandbox]:
    """One page of records, ordered by start time and id."""
    clauses, values = _matching(query)
    order, beyond = ("ASC", ">") if query.ascending else ("DESC", "<")
    if query.cursor is not None:
        clauses.append(f"(started_at, id) {beyond} (?, ?)")
        values += query.cursor
    rows = connection.execute(
        f"SELECT record FROM sandboxes WHERE {' AND '.join(clauses)}"  # noqa: S608 (only placeholders)
        f" ORDER BY started_at {order}, id {order} LIMIT ?",
        [*values, query.limit],
    )
    return [_read(row) for row in rows]


def count(connection: sqlite3.Connection, query: SandboxFilter) -> int:
    """How many records match, on all pages together."""
    clauses, values = _matching(query)
    (number,) = connection.execute(
        f"SELECT count(*) FROM sandboxes WHERE {' AND '.join(clauses)}",  # noqa: S608 (only placeholders)
        values,
    ).fetchone()
    return int(number)


def by_state(connection: sqlite3.Connection) -> dict[str, int]:
    """How many records there are in each state."""
    found = connection.execute("SELECT state, count(*) FROM sandboxes GROUP BY state")
    return {str(state): 0 for state in State} | dict(found.fetchall())


def _matching(query: SandboxFilter) -> tuple[list[str], list[object]]:
    """The conditions of a query, and the values for their placeholders."""
    clauses = [f"state IN ({', '.join('?' * len(query.states))})"]
    values: list[object] = [str(state) for state in query.states]
    if query.template is not None:
        clauses.append("(template_id = ? OR json_extract(record, '$.alias') = ?)")
        values += [query.template, query.template]
    if query.started_after is not None:
        clauses.append("started_at >= ?")
        values.append(query.started_after)
    for key, value in query.metadata.items():
        # A subquery, since a path expression can't hold every key: quotes and dots are legal in one.
        clauses.append(
            "EXISTS (SELECT 1 FROM json_each(record, '$.metadata') WHERE json_each.key = ?"
            " AND json_each.value = ?)"
        )
        values += [key, value]
    return clauses, values


def in_states(connection: sqlite3.Connection, states: Collection[State]) -> list[Sandbox]:
    """Every record in one of `states`."""
    return find(connection, SandboxFilter(states=frozenset(states), limit=-1))


def expired(connection: sqlite3.Connection, now: float) -> list[str]:
    """Ids of running sandboxes whose deadline has passed, the longest overdue first."""
    rows = connection.execute(
        "SELECT id FROM sandboxes WHERE state = ? AND end_at <= ? ORDER BY end_at", (State.RUNNING, now)
    )
    return [row[0] for row in rows]
