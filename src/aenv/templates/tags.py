"""Tags: which build a name stands for. The functions run inside a transaction of `aenv.database`.

The latest assignment of a tag counts; those before are its history.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable

from aenv.sandboxes.models import TagAssignment

HISTORY = 100
"""Assignments kept per tag."""

_ASSIGNMENT = """
SELECT a.id, a.tag, a.build_id, a.assigned_at, b.created_at
FROM {} a JOIN builds b ON b.id = a.build_id WHERE a.template_id = ?
"""


def assign(connection: sqlite3.Connection, template_id: str, tags: Iterable[str], build_id: str) -> None:
    """Point tags to a build, and forget builds that nothing mentions any more."""
    now = time.time()
    for tag in tags:
        connection.execute(
            "INSERT INTO tag_assignments (id, template_id, tag, build_id, assigned_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (str(uuid.uuid4()), template_id, tag, build_id, now),
        )
        connection.execute(
            "DELETE FROM tag_assignments WHERE sequence IN (SELECT sequence FROM tag_assignments"
            " WHERE template_id = ? AND tag = ? ORDER BY sequence DESC LIMIT -1 OFFSET ?)",
            (template_id, tag, HISTORY),
        )
    _forget_builds(connection, template_id)
    connection.execute("UPDATE templates SET updated_at = ? WHERE id = ?", (now, template_id))


def remove(connection: sqlite3.Connection, template_id: str, tags: Iterable[str]) -> None:
    """Remove tags and their history, and with the last one the template, unless it is being built."""
    connection.executemany(
        "DELETE FROM tag_assignments WHERE template_id = ? AND tag = ?", [(template_id, tag) for tag in tags]
    )
    _forget_builds(connection, template_id)
    connection.execute(
        "DELETE FROM templates WHERE id = ? AND id NOT IN (SELECT template_id FROM tag_assignments)"
        " AND id NOT IN (SELECT template_id FROM build_jobs WHERE status IN ('waiting', 'building'))",
        (template_id,),
    )


def _forget_builds(connection: sqlite3.Connection, template_id: str) -> None:
    connection.execute(
        "DELETE FROM builds WHERE template_id = ?1"
        " AND id NOT IN (SELECT build_id FROM tag_assignments WHERE template_id = ?1)",
        (template_id,),
    )


def current(connection: sqlite3.Connection, template_id: str) -> list[TagAssignment]:
    """What each tag of a template points to, the latest assignment first."""
    rows = connection.execute(
        _ASSIGNMENT.format("current_tags") + " ORDER BY a.sequence DESC", (template_id,)
    )
    return [TagAssignment(*row) for row in rows]


def history(connection: sqlite3.Connection, template_id: str) -> list[TagAssignment]:
    """Every assignment that is kept, the latest first."""
    rows = connection.execute(
        _ASSIGNMENT.format("tag_assignments") + " ORDER BY a.sequence DESC", (template_id,)
    )
    return [TagAssignment(*row) for row in rows]
