"""Template records in the database. The functions run inside a transaction of `aenv.database`."""

from __future__ import annotations

import sqlite3

from pydantic import TypeAdapter

from aenv.sandboxes.models import Template

_RECORD = TypeAdapter(Template)


def _write(template: Template) -> str:
    return _RECORD.dump_json(template).decode()


def put(connection: sqlite3.Connection, template: Template) -> None:
    """Add the record, or replace the one with its id."""
    connection.execute("DELETE FROM templates WHERE id = ?", (template.id,))
    connection.execute("INSERT INTO templates (record) VALUES (?)", (_write(template),))


def get(connection: sqlite3.Connection, id_or_name: str) -> Template | None:
    """The record with this id, else with this name."""
    row = connection.execute(
        "SELECT record FROM templates WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC", (id_or_name,)
    ).fetchone()
    return None if row is None else _RECORD.validate_json(row[0])


def everything(connection: sqlite3.Connection) -> list[Template]:
    """All records, newest first."""
    rows = connection.execute("SELECT record FROM templates ORDER BY created_at DESC, id DESC")
    return [_RECORD.validate_json(row[0]) for row in rows]


def delete(connection: sqlite3.Connection, template_id: str) -> None:
    """Remove the record."""
    connection.execute("DELETE FROM templates WHERE id = ?", (template_id,))


def sandboxes_using(connection: sqlite3.Connection, template_id: str) -> int:
    """How many sandboxes were started from it and still exist."""
    (count,) = connection.execute(
        "SELECT count(*) FROM sandboxes WHERE template_id = ? AND state != 'lost'", (template_id,)
    ).fetchone()
    return int(count)
