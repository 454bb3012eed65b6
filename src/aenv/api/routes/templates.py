"""Templates and their builds; `DELETE` takes snapshots too, as the E2B contract wants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from aenv.api.body import json_body
from aenv.api.paging import MAX_LIMIT, NEXT_TOKEN_HEADER, Limit, NextToken, newest_first
from aenv.api.routes.paths import TemplateName
from aenv.api.routes.teams import TeamId
from aenv.api.schema import failures
from aenv.api.template_models import (
    ListedTemplate,
    TemplateAlias,
    TemplateNames,
    TemplateWithBuilds,
    UpdateTemplate,
)
from aenv.errors import InvalidRequest
from aenv.sandboxes.base import Templates

Update = Annotated[UpdateTemplate, Depends(json_body(UpdateTemplate))]


def aliases_router(templates: Templates) -> APIRouter:
    """Whether a name is taken. There is one team, so whoever may ask may use what there is: never 403."""
    router = APIRouter()

    @router.get("/templates/aliases/{alias}")
    async def by_alias(alias: TemplateName) -> TemplateAlias:
        found = await templates.find(alias)
        return TemplateAlias(template_id=found.id, public=found.public)

    return router


def templates_router(templates: Templates) -> APIRouter:
    """Both generations of the template list, and one template by id, alias or either with a tag."""
    router = APIRouter()

    @router.get("/templates")
    async def list_v1(team: TeamId = None) -> list[ListedTemplate]:
        return [ListedTemplate.of(template) for template in await templates.list(snapshots=False)]

    @router.get("/v2/templates")
    async def list_v2(
        response: Response,
        team: TeamId = None,
        limit: Limit = MAX_LIMIT,
        next_token: NextToken = None,
    ) -> list[ListedTemplate]:
        every = await templates.list(snapshots=False)
        page, token = newest_first(every, lambda t: (t.created_at, t.id), limit=limit, token=next_token)
        if token is not None:
            response.headers[NEXT_TOKEN_HEADER] = token
        return [ListedTemplate.of(template) for template in page]

    @router.get("/default-templates")
    async def list_default() -> list[ListedTemplate]:
        every = await templates.list(snapshots=False)
        built_in = [template for template in every if template.namespace is None]
        return [ListedTemplate.of(template) for template in sorted(built_in, key=lambda t: t.id)]

    @router.get("/templates/{name}")
    async def template(
        response: Response, name: TemplateName, limit: Limit = MAX_LIMIT, next_token: NextToken = None
    ) -> TemplateWithBuilds:
        found, builds = await templates.builds(name)
        page, token = newest_first(builds, lambda b: (b.created_at, b.id), limit=limit, token=next_token)
        if token is not None:
            response.headers[NEXT_TOKEN_HEADER] = token
        return TemplateWithBuilds.describe(found, page)

    @router.delete("/templates/{name}", status_code=204, responses=failures(400))
    async def delete(name: TemplateName) -> None:
        await templates.delete(name)

    @router.patch("/templates/{name}")
    @router.patch("/v2/templates/{name}")
    async def update(name: TemplateName, body: Update) -> TemplateNames:
        if body.public is None:
            raise InvalidRequest("public: nothing else can be changed, so it is required")
        return TemplateNames(names=(await templates.set_public(name, body.public)).names)

    return router
