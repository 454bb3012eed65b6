"""Lists of snapshots, and one snapshot by id or name. They are deleted through the template routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from aenv.api.models import SnapshotInfo
from aenv.api.paging import MAX_LIMIT, NEXT_TOKEN_HEADER, Limit, NextToken, newest_first
from aenv.api.routes.paths import TemplateName
from aenv.errors import SnapshotNotFound, TemplateNotFound
from aenv.sandboxes.base import Templates
from aenv.sandboxes.models import Template
from aenv.templates.names import Name, look_up


def _has_name(snapshot: Template, name: Name) -> bool:
    """Whether the snapshot's build has this name, under this tag if there is one."""
    return name.alias in {snapshot.id, snapshot.name} and name.tag in {None, snapshot.tag}


def snapshots_router(templates: Templates) -> APIRouter:
    """`GET /snapshots` (E2B's) and `GET /snapshots/{id}` (AgentENV's own)."""
    router = APIRouter()

    @router.get("/snapshots")
    async def list_snapshots(
        response: Response,
        sandbox_id: Annotated[str | None, Query(alias="sandboxID")] = None,
        name: str | None = None,
        limit: Limit = MAX_LIMIT,
        next_token: NextToken = None,
    ) -> list[SnapshotInfo]:
        wanted = look_up(name) if name else None
        matching = [
            snapshot
            for snapshot in await templates.list(snapshots=True)
            if (not sandbox_id or snapshot.build.source_sandbox_id == sandbox_id)
            and (not name or (wanted is not None and _has_name(snapshot, wanted)))
        ]
        page, token = newest_first(
            matching, lambda s: (s.build.created_at, s.build.id), limit=limit, token=next_token
        )
        if token is not None:
            response.headers[NEXT_TOKEN_HEADER] = token
        return [SnapshotInfo.of(snapshot) for snapshot in page]

    @router.get("/snapshots/{name}")
    async def snapshot(name: TemplateName) -> SnapshotInfo:
        try:
            found = await templates.find(name)
        except TemplateNotFound as error:
            raise SnapshotNotFound(name) from error
        if not found.is_snapshot:
            raise SnapshotNotFound(name)
        return SnapshotInfo.of(found)

    return router
