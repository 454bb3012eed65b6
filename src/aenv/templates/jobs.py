"""Records of builds of templates, from the request to the end. Functions run inside a transaction."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from aenv import ids
from aenv.errors import InvalidRequest, NotFound
from aenv.templates import names, store
from aenv.templates.names import TEAM, Name

Status = Literal["waiting", "building", "ready", "error"]
"""`waiting` is a build that was asked for, and hasn't been told its steps yet."""

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long it is kept how a build went that isn't there (any more)."""

STARTED_WITHIN_SECONDS = 24 * 3600.0
"""How long a build may wait for its steps."""


@dataclass(frozen=True)
class Reason:
    """Why a build failed. `step` is `base`, the number of a step (from 1), or `finalize`."""

    message: str
    step: str | None = None


@dataclass(frozen=True)
class Size:
    """What was asked for; None for what the parent has."""

    cpu_count: int | None = None
    memory_mib: int | None = None
    min_free_disk_mib: int = 0
    disk_mib: int | None = None


@dataclass(frozen=True)
class Job:
    """One build. Times are seconds since the epoch."""

    id: str
    template_id: str
    tags: tuple[str, ...]
    """What will point to it when it is ready."""
    size: Size
    status: Status
    created_at: float
    updated_at: float
    reason: Reason | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in {"ready", "error"}


_JOB = TypeAdapter(Job)


def request(connection: sqlite3.Connection, name: Name, tags: Sequence[str], size: Size) -> Job:
    """Record a new build of the template of that name, made if it is missing. Raises InvalidRequest."""
    template_id = _template_for(connection, name.alias)
    now = time.time()
    job = Job(ids.new_build_id(), template_id, tuple(tags), size, "waiting", now, now)
    connection.execute(
        "INSERT INTO build_jobs (template_id, record) VALUES (?, ?)",
        (template_id, _JOB.dump_json(job).decode()),
    )
    return job


def _template_for(connection: sqlite3.Connection, alias: str) -> str:
    known = store.get(connection, alias)
    if known is None:
        unbuilt = store.unbuilt(connection, alias)
        return unbuilt or store.add(connection, alias, TEAM, public=False)
    if known.namespace is None:
        raise InvalidRequest(f"name: {alias!r} is a template of the server itself: choose another name")
    if known.is_snapshot:
        raise InvalidRequest(f"name: {alias!r} belongs to a snapshot: choose another")
    return known.id


def find(connection: sqlite3.Connection, template: str, build_id: str) -> Job:
    """A build by its template's id or name, and its own id. Raises NotFound."""
    name = names.look_up(template)
    row = connection.execute(
        "SELECT j.record FROM build_jobs j JOIN templates t ON t.id = j.template_id"
        " WHERE j.id = ?1 AND (t.id = ?2 OR t.name = ?2)",
        (build_id, None if name is None else name.alias),
    ).fetchone()
    if row is None:
        raise NotFound(f"build {build_id!r} of template {template!r} was not found")
    return _JOB.validate_json(row[0])


def get(connection: sqlite3.Connection, build_id: str) -> Job | None:
    """A build by its id, if it is still there."""
    row = connection.execute("SELECT record FROM build_jobs WHERE id = ?", (build_id,)).fetchone()
    return None if row is None else _JOB.validate_json(row[0])


def change(
    connection: sqlite3.Connection, job: Job, status: Status, reason: Reason | None = None
) -> Job | None:
    """Move a build on, unless it is over; None if it is gone, as with its template, or over."""
    known = get(connection, job.id)
    if known is None or known.is_over:
        return None
    changed = dataclasses.replace(known, status=status, reason=reason, updated_at=time.time())
    connection.execute(
        "UPDATE build_jobs SET record = ? WHERE id = ?", (_JOB.dump_json(changed).decode(), job.id)
    )
    return changed


def of_template(connection: sqlite3.Connection, template_id: str) -> list[Job]:
    """The builds of a template that are recorded, newest first."""
    rows = connection.execute(
        "SELECT record FROM build_jobs WHERE template_id = ? ORDER BY record ->> '$.created_at' DESC",
        (template_id,),
    )
    return [_JOB.validate_json(row[0]) for row in rows]


def under_way(connection: sqlite3.Connection) -> list[Job]:
    """The builds that have their steps and aren't over."""
    rows = connection.execute("SELECT record FROM build_jobs WHERE status = 'building'")
    return [_JOB.validate_json(row[0]) for row in rows]


def forget_old(connection: sqlite3.Connection, now: float) -> set[str]:
    """Forget old builds that aren't there, and templates that never had one; the ids of all that is left."""
    connection.execute(
        "DELETE FROM build_jobs WHERE id NOT IN (SELECT id FROM builds)"
        " AND (status IN ('ready', 'error') AND updated_at < ? OR status = 'waiting' AND updated_at < ?)",
        (now - KEPT_SECONDS, now - STARTED_WITHIN_SECONDS),
    )
    connection.execute(
        "DELETE FROM templates WHERE id NOT IN (SELECT template_id FROM tag_assignments)"
        " AND id NOT IN (SELECT template_id FROM build_jobs)"
    )
    return {row[0] for row in connection.execute("SELECT id FROM build_jobs")}
