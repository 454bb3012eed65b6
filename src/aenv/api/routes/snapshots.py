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


def bare_name(text: str) -> str:
    """`name` of `namespace/name:tag`: this server has one namespace and one tag."""
    return text.rsplit("/", 1)[-1].split(":", 1)[0]


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
        wanted = bare_name(name) if name else None
        matching = [
            snapshot
            for snapshot in await templates.list(snapshots=True)
            if (not sandbox_id or snapshot.source_sandbox_id == sandbox_id)
            and (wanted is None or wanted == snapshot.id or wanted in snapshot.names)
        ]
        page, token = newest_first(matching, lambda s: (s.created_at, s.id), limit=limit, token=next_token)
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
