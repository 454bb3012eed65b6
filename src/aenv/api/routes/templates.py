"""Lookup and deletion of templates; `DELETE` takes snapshots too, as the E2B contract wants."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from aenv.api.paging import MAX_LIMIT, NEXT_TOKEN_HEADER, Limit, NextToken, newest_first
from aenv.api.routes.paths import TemplateName
from aenv.api.template_models import ListedTemplate, TemplateAlias, TemplateWithBuilds
from aenv.sandboxes.base import Templates


def templates_router(templates: Templates) -> APIRouter:
    """Both generations of the template list, and one template by id, alias or either with a tag."""
    router = APIRouter()

    @router.get("/templates")
    async def list_v1() -> list[ListedTemplate]:
        return [ListedTemplate.of(template) for template in await templates.list(snapshots=False)]

    @router.get("/v2/templates")
    async def list_v2(
        response: Response, limit: Limit = MAX_LIMIT, next_token: NextToken = None
    ) -> list[ListedTemplate]:
        every = await templates.list(snapshots=False)
        page, token = newest_first(every, lambda t: (t.created_at, t.id), limit=limit, token=next_token)
        if token is not None:
            response.headers[NEXT_TOKEN_HEADER] = token
        return [ListedTemplate.of(template) for template in page]

    @router.get("/templates/aliases/{alias}")
    async def by_alias(alias: TemplateName) -> TemplateAlias:
        return TemplateAlias(template_id=(await templates.find(alias)).id)

    @router.get("/templates/{name}")
    async def template(name: TemplateName) -> TemplateWithBuilds:
        return TemplateWithBuilds.of(await templates.find(name))

    @router.delete("/templates/{name}", status_code=204)
    async def delete(name: TemplateName) -> None:
        await templates.delete(name)

    return router
