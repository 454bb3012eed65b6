"""Lookup and deletion of templates and snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from aenv.database import Database
from aenv.errors import InvalidRequest, TemplateNotFound
from aenv.sandboxes.models import Template
from aenv.snapshots.captures import Captures
from aenv.templates import store

DEFAULT_TAG = "default"


class TemplateService:
    """The templates of one node; implements `aenv.sandboxes.base.Templates`."""

    def __init__(self, database: Database, captures: Captures) -> None:
        self._database = database
        self._captures = captures

    async def find(self, name: str) -> Template:
        """By id or alias, with or without `:default`. Raises TemplateNotFound, naming what was asked."""
        alias, _, tag = name.lower().partition(":")
        found = None
        if tag in {"", DEFAULT_TAG}:
            found = await self._database.run(lambda c: store.get(c, alias))
        if found is None:
            raise TemplateNotFound(name)
        return found

    async def list(self, *, snapshots: bool) -> Sequence[Template]:
        """All templates, or all snapshots, newest first."""
        found = await self._database.run(store.everything)
        return [template for template in found if template.is_snapshot == snapshots]

    async def delete(self, name: str) -> None:
        """Delete a template or snapshot.

        Raises TemplateNotFound, or InvalidRequest while sandboxes that were started from it exist, as
        E2B does.
        """
        template = await self.find(name)

        def transaction(connection: sqlite3.Connection) -> None:
            users = store.sandboxes_using(connection, template.id)
            if users:
                raise InvalidRequest(f"template {name!r} is in use: kill its {users} sandbox(es) first")
            store.delete(connection, template.id)

        await self._database.run(transaction)
        await self._captures.collect()
