"""Lookup, tags and deletion of templates and snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from aenv.database import Database
from aenv.errors import InvalidRequest
from aenv.sandboxes.models import Build, TagAssignment, Template
from aenv.snapshots.captures import Captures
from aenv.templates import names, store, tags
from aenv.templates.names import DEFAULT_TAG

T = TypeVar("T")


class TemplateService:
    """The templates of one node; implements `aenv.sandboxes.base.Templates`."""

    def __init__(self, database: Database, captures: Captures) -> None:
        self._database = database
        self._captures = captures
        self.on_deleted: Callable[[str], None] = lambda _template_id: None
        """Called with the id of each template that is deleted as a whole."""

    async def find(self, name: str) -> Template:
        """By id or name, at its tag; see `Templates.find`."""
        return await self._database.run(lambda c: store.look_up(c, name))

    async def list(self, *, snapshots: bool) -> Sequence[Template]:
        """All templates, or all snapshots, newest first; see `Templates.list`."""
        found = await self._database.run(lambda c: store.everything(c, each_build=snapshots))
        return [template for template in found if template.is_snapshot == snapshots]

    async def builds(self, name: str) -> tuple[Template, Sequence[Build]]:
        """A template and its builds, newest first; see `Templates.builds`."""

        def transaction(connection: sqlite3.Connection) -> tuple[Template, Sequence[Build]]:
            template = store.look_up(connection, name)
            return template, store.builds(connection, template.id)

        return await self._database.run(transaction)

    async def set_public(self, name: str, public: bool) -> Template:
        """Show a template as public, or not; see `Templates.set_public`."""

        def transaction(connection: sqlite3.Connection) -> Template:
            template = store.look_up(connection, name)
            store.set_public(connection, template.id, public)
            return store.look_up(connection, template.id)

        return await self._database.run(transaction)

    async def delete(self, name: str) -> None:
        """Delete a template or snapshot, or one build of it; see `Templates.delete`."""

        def transaction(connection: sqlite3.Connection) -> str | None:
            parsed = names.look_up(name)
            unbuilt = None if parsed is None else store.unbuilt(connection, parsed.alias)
            if unbuilt is not None:
                store.delete(connection, unbuilt)
                return unbuilt
            template = store.look_up(connection, name)
            one_build = parsed is not None and parsed.tag is not None
            build_ids = {template.build.id} if one_build else None
            _check_unused(connection, template, name, build_ids)
            if build_ids is None:
                store.delete(connection, template.id)
                return template.id
            current = tags.current(connection, template.id)
            doomed = [each.tag for each in current if each.build_id == template.build.id]
            tags.remove(connection, template.id, doomed)
            return None

        deleted = await self._change(transaction)
        if deleted is not None:
            self.on_deleted(deleted)

    async def assign_tags(self, target: str, wanted: Sequence[str]) -> tuple[Build, Sequence[str]]:
        """Point tags to the build that `target` names; see `Templates.assign_tags`."""
        normal = _normal(wanted)

        def transaction(connection: sqlite3.Connection) -> tuple[Build, Sequence[str]]:
            template = store.resolve(connection, target)
            tags.assign(connection, template.id, normal, template.build.id)
            return template.build, normal

        return await self._change(transaction)

    async def remove_tags(self, name: str, unwanted: Sequence[str]) -> None:
        """Remove tags; see `Templates.remove_tags`."""
        normal = _normal(unwanted)
        if DEFAULT_TAG in normal:
            raise InvalidRequest(f"tags: {DEFAULT_TAG!r} can't be removed")

        def transaction(connection: sqlite3.Connection) -> None:
            template = store.look_up(connection, name)
            if {each.tag for each in tags.current(connection, template.id)} <= set(normal):
                # Its last tag: nothing would be left.
                _check_unused(connection, template, name, None)
            tags.remove(connection, template.id, normal)

        await self._change(transaction)

    async def tags(self, name: str) -> Sequence[TagAssignment]:
        """What the tags of a template point to, the latest first; see `Templates.tags`."""
        return await self._database.run(lambda c: tags.current(c, store.look_up(c, name).id))

    async def assignments(self, name: str) -> Sequence[TagAssignment]:
        """The history of all tags of a template, the latest first; see `Templates.assignments`."""
        return await self._database.run(lambda c: tags.history(c, store.look_up(c, name).id))

    async def _change(self, transaction: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction after which captures may not be needed any more."""
        result = await self._database.run(transaction)
        await self._captures.collect()
        return result


def _normal(wanted: Sequence[str]) -> Sequence[str]:
    """Tags in their normal form, each once. Raises InvalidRequest."""
    if not wanted:
        raise InvalidRequest("tags: at least one is needed")
    return list(dict.fromkeys(names.parse_tag(tag) for tag in wanted))


def _check_unused(
    connection: sqlite3.Connection, template: Template, name: str, build_ids: set[str] | None
) -> None:
    users = store.sandboxes_using(connection, template.id, build_ids)
    if users:
        raise InvalidRequest(f"template {name!r} is in use: kill its {users} sandbox(es) first")
