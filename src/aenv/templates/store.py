"""Records of templates and their builds. The functions run inside a transaction of `aenv.database`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

from pydantic import TypeAdapter

from aenv import ids
from aenv.errors import TemplateNotFound
from aenv.sandboxes.models import Build, Template
from aenv.templates import names
from aenv.templates.names import DEFAULT_TAG

_BUILD = TypeAdapter(Build)

_SEEN = """
SELECT t.id, t.name, t.namespace, t.public, t.created_at, t.updated_at, t.spawn_count, t.last_spawned_at,
    (SELECT count(*) FROM builds WHERE template_id = t.id), b.record, g.tag
FROM templates t JOIN current_tags g ON g.template_id = t.id JOIN builds b ON b.id = g.build_id
"""
_PREFERRED = f"g.tag = '{DEFAULT_TAG}' DESC, g.sequence DESC"
"""By which tag a template or build is seen, if there are several: the default, else the newest."""


def _read(row: tuple[object, ...]) -> Template:
    identifier, name, namespace, public, created, updated, spawns, spawned, builds, record, tag = row
    return Template(
        id=str(identifier),
        name=None if name is None else str(name),
        namespace=None if namespace is None else str(namespace),
        public=bool(public),
        created_at=_number(created),
        updated_at=_number(updated),
        spawn_count=int(_number(spawns)),
        last_spawned_at=None if spawned is None else _number(spawned),
        build_count=int(_number(builds)),
        build=_BUILD.validate_json(str(record)),
        tag=str(tag),
    )


def _number(value: object) -> float:
    assert isinstance(value, int | float)  # noqa: S101 -- the column's type
    return value


def add(connection: sqlite3.Connection, name: str | None, namespace: str | None, *, public: bool) -> str:
    """Add a template, which needs a build to be seen; returns its id."""
    template_id, now = ids.new_template_id(), time.time()
    connection.execute(
        "INSERT INTO templates (id, name, namespace, public, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (template_id, name, namespace, public, now, now),
    )
    return template_id


def unbuilt(connection: sqlite3.Connection, id_or_name: str) -> str | None:
    """The id of the template that has this id or name and no build yet, so that nothing else shows it."""
    row = connection.execute(
        "SELECT id FROM templates WHERE (id = ?1 OR name = ?1)"
        " AND id NOT IN (SELECT template_id FROM tag_assignments)",
        (id_or_name,),
    ).fetchone()
    return None if row is None else str(row[0])


def is_being_built(connection: sqlite3.Connection, template_id: str) -> bool:
    """Whether a build of the template is asked for or under way."""
    query = "SELECT 1 FROM build_jobs WHERE template_id = ? AND status IN ('waiting', 'building')"
    return connection.execute(query, (template_id,)).fetchone() is not None


def by_key(connection: sqlite3.Connection, key: str) -> Build | None:
    """The newest build that was made from what `key` stands for."""
    row = connection.execute(
        "SELECT record FROM builds WHERE json_extract(record, '$.key') = ? ORDER BY created_at DESC LIMIT 1",
        (key,),
    ).fetchone()
    return None if row is None else _BUILD.validate_json(row[0])


def add_build(connection: sqlite3.Connection, template_id: str, build: Build) -> None:
    """Add a build to a template. It is kept only if a tag is pointed to it in the same transaction."""
    connection.execute(
        "INSERT INTO builds (template_id, record) VALUES (?, ?)",
        (template_id, _BUILD.dump_json(build).decode()),
    )


def get(connection: sqlite3.Connection, id_or_name: str, tag: str | None = None) -> Template | None:
    """What has this id, else this name, at the build of `tag`; without one at the preferred build."""
    row = connection.execute(
        f"{_SEEN} WHERE (t.id = ?1 OR t.name = ?1) AND (?2 IS NULL OR g.tag = ?2)"
        f" ORDER BY t.id = ?1 DESC, {_PREFERRED} LIMIT 1",
        (id_or_name, tag),
    ).fetchone()
    return None if row is None else _read(row)


def resolve(connection: sqlite3.Connection, text: str) -> Template:
    """What to start for `text`, at its tag or the default one. Raises TemplateNotFound."""
    name = names.look_up(text)
    found = None if name is None else get(connection, name.alias, name.tag or DEFAULT_TAG)
    if found is None:
        raise TemplateNotFound(text)
    return found


def look_up(connection: sqlite3.Connection, text: str) -> Template:
    """What `text` names, at its tag or the preferred one. Raises TemplateNotFound."""
    name = names.look_up(text)
    found = None if name is None else get(connection, name.alias, name.tag)
    if found is None:
        raise TemplateNotFound(text)
    return found


def everything(connection: sqlite3.Connection, *, each_build: bool) -> list[Template]:
    """All templates, each at its preferred build, or at each of its builds that has a tag; newest first."""
    rows = connection.execute(f"{_SEEN} ORDER BY t.created_at DESC, t.id DESC, {_PREFERRED}")
    seen: dict[str, Template] = {}
    for template in map(_read, rows):
        seen.setdefault(template.build.id if each_build else template.id, template)
    return list(seen.values())


def build_ids(connection: sqlite3.Connection) -> list[str]:
    """The builds that have a tag."""
    return [row[0] for row in connection.execute("SELECT DISTINCT build_id FROM current_tags")]


def capture_of(connection: sqlite3.Connection, build_id: str) -> str | None:
    """The id of a build's capture; None if no tag points to the build any more."""
    row = connection.execute(
        "SELECT capture_id FROM builds WHERE id = ? AND id IN (SELECT build_id FROM current_tags)",
        (build_id,),
    ).fetchone()
    return None if row is None else str(row[0])


def set_capture(connection: sqlite3.Connection, build_id: str, capture_id: str) -> None:
    """Let a build have another capture, of the same state."""
    connection.execute(
        "UPDATE builds SET record = json_set(record, '$.capture_id', ?) WHERE id = ?", (capture_id, build_id)
    )


def builds(connection: sqlite3.Connection, template_id: str) -> list[Build]:
    """The builds of a template that have a tag, newest first."""
    rows = connection.execute(
        "SELECT record FROM builds WHERE template_id = ? AND id IN (SELECT build_id FROM current_tags)"
        " ORDER BY created_at DESC, id DESC",
        (template_id,),
    )
    return [_BUILD.validate_json(row[0]) for row in rows]


def note_spawn(connection: sqlite3.Connection, template_id: str, at: float) -> None:
    """Count a sandbox started from the template."""
    connection.execute(
        "UPDATE templates SET spawn_count = spawn_count + 1, last_spawned_at = ? WHERE id = ?",
        (at, template_id),
    )


def set_public(connection: sqlite3.Connection, template_id: str, public: bool) -> None:
    """Change whether the template is shown as public."""
    connection.execute(
        "UPDATE templates SET public = ?, updated_at = ? WHERE id = ?", (public, time.time(), template_id)
    )


def delete(connection: sqlite3.Connection, template_id: str) -> None:
    """Remove a template with its builds and tags."""
    connection.execute("DELETE FROM templates WHERE id = ?", (template_id,))


def sandboxes_using(
    connection: sqlite3.Connection, template_id: str, build_ids: Iterable[str] | None = None
) -> int:
    """How many sandboxes were started from the template, or from some builds of it, and still exist."""
    rows = connection.execute(
        "SELECT record ->> '$.build_id' FROM sandboxes WHERE template_id = ? AND state != 'lost'",
        (template_id,),
    ).fetchall()
    wanted = None if build_ids is None else {*build_ids, None}
    return sum(wanted is None or build_id in wanted for (build_id,) in rows)
