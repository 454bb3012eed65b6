"""Building templates: asked for, files, start, status and logs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.requests import ClientDisconnect

from aenv.api.body import json_body
from aenv.api.build_models import (
    BuildLogs,
    BuildStatus,
    BuildSummary,
    FailureReason,
    FetchedLayer,
    FileUpload,
    LogEntry,
    NewTemplate,
    RequestedTemplate,
    StartBuild,
)
from aenv.api.paging import MAX_LIMIT
from aenv.api.routes.paths import TemplateName
from aenv.api.schema import failures
from aenv.api.upload_links import UPLOADS, UploadLinks
from aenv.errors import InvalidRequest, NotFound
from aenv.guest.reports import Level
from aenv.sandboxes.base import Templates
from aenv.templates.build_log import at_least
from aenv.templates.builder import Builder
from aenv.templates.steps import checked_hash
from aenv.templates.uploads import Uploads

Limit = Annotated[int, Query(ge=0, le=MAX_LIMIT)]


def builds_router(templates: Templates, builder: Builder) -> APIRouter:
    """A build from its request to its end."""
    router = APIRouter()

    @router.post("/v3/templates", status_code=202, responses=failures(507))
    async def request_build(
        body: Annotated[NewTemplate, Depends(json_body(NewTemplate))],
    ) -> RequestedTemplate:
        job, alias = await builder.request(body.wanted_name, body.tags or [], body.size)
        return RequestedTemplate.of(job, alias)

    @router.post("/v2/templates/{name}/builds/{build_id}", status_code=202, responses=failures(409, 503))
    async def start(
        name: TemplateName, build_id: str, body: Annotated[StartBuild, Depends(json_body(StartBuild))]
    ) -> None:
        await builder.start(name, build_id, body.plan())

    @router.get("/templates/{name}/builds/{build_id}/status")
    async def status(
        name: TemplateName,
        build_id: str,
        *,
        logs_offset: Annotated[int, Query(alias="logsOffset", ge=0)] = 0,
        limit: Limit = MAX_LIMIT,
        level: Level | None = None,
    ) -> BuildStatus:
        try:
            job = await builder.find(name, build_id)
        except NotFound:
            return BuildStatus(template_id=await _of_ready(name, build_id), build_id=build_id)
        # After the state: who sees the last state may ask for all of the log.
        every = await builder.log(build_id)
        entries = at_least(every, level)[logs_offset : logs_offset + limit]
        return BuildStatus(
            template_id=job.template_id,
            build_id=build_id,
            status=job.status,
            logs=[entry.message for entry in entries],
            log_entries=[LogEntry.of(entry) for entry in entries],
            reason=None if job.reason is None else FailureReason.of(job.reason, every),
        )

    @router.get("/templates/{name}/builds/{build_id}/logs")
    async def logs(
        name: TemplateName,
        build_id: str,
        *,
        cursor: Annotated[int | None, Query(ge=0)] = None,
        limit: Limit = MAX_LIMIT,
        direction: Literal["forward", "backward"] = "forward",
        level: Level | None = None,
        source: Literal["temporary", "persistent"] | None = None,
    ) -> BuildLogs:
        try:
            await builder.find(name, build_id)
        except NotFound:
            await _of_ready(name, build_id)
        entries = at_least(await builder.log(build_id), level)
        if direction == "forward":
            found = [entry for entry in entries if cursor is None or entry.time * 1000 >= cursor]
        else:
            found = [entry for entry in reversed(entries) if cursor is None or entry.time * 1000 <= cursor]
        return BuildLogs(logs=[LogEntry.of(entry) for entry in found[:limit]])

    async def _of_ready(name: str, build_id: str) -> str:
        """The template of a build that wasn't made from steps, or long ago. Raises NotFound."""
        template, builds = await templates.builds(name)
        if build_id not in {build.id for build in builds}:
            raise NotFound(f"build {build_id!r} of template {name!r} was not found")
        return template.id

    return router


def build_control_router(builder: Builder) -> APIRouter:
    """What E2B's API has no routes for: all builds of a template, how far one is, and its end."""
    router = APIRouter()

    @router.get("/templates/{name}/builds")
    async def every(name: TemplateName) -> list[BuildSummary]:
        return [BuildSummary.of(job) for job in await builder.of_template(name)]

    @router.delete("/templates/{name}/builds/{build_id}", status_code=204, responses=failures(409))
    async def cancel(name: TemplateName, build_id: str) -> None:
        await builder.cancel(name, build_id)

    @router.get("/templates/{name}/builds/{build_id}/layers")
    async def layers(name: TemplateName, build_id: str) -> list[FetchedLayer]:
        await builder.find(name, build_id)
        return [FetchedLayer.of(layer) for layer in builder.layers(build_id)]

    return router


def uploads_router(builder: Builder, uploads: Uploads, links: UploadLinks) -> APIRouter:
    """The files of a build's COPY."""
    router = APIRouter()

    @router.get("/templates/{name}/files/{files_hash}", status_code=201, responses=failures(400))
    async def link(request: Request, name: TemplateName, files_hash: str) -> FileUpload:
        await builder.check_template(name)
        present = await uploads.has(checked_hash(files_hash))
        return FileUpload(present=present, url=links.make(request, files_hash))

    @router.put(UPLOADS, status_code=204, responses=failures(401, 507))
    async def put(
        request: Request,
        files_hash: Annotated[str, Query(alias="hash")],
        expires: int,
        signature: str,
    ) -> None:
        links.check(checked_hash(files_hash), expires, signature)
        try:
            await uploads.put(files_hash, request.stream())
        except ClientDisconnect as error:
            raise InvalidRequest("the connection ended within the archive") from error

    return router
