"""The API as one FastAPI application."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from aenv import __version__
from aenv.api import errors, schema
from aenv.api.auth import ApiKeys, RequireKey
from aenv.api.metrics import Metered, Metrics
from aenv.api.routes.builds import build_control_router, builds_router, uploads_router
from aenv.api.routes.health import health_router
from aenv.api.routes.listing import listing_router
from aenv.api.routes.metrics import metrics_router
from aenv.api.routes.refused import refused_router
from aenv.api.routes.sandboxes import changing_router, starting_router
from aenv.api.routes.snapshots import snapshots_router
from aenv.api.routes.tags import tags_router
from aenv.api.routes.teams import teams_router
from aenv.api.routes.telemetry import telemetry_router
from aenv.api.routes.templates import aliases_router, templates_router
from aenv.api.timing import ServerTiming
from aenv.api.upload_links import UploadLinks
from aenv.sandboxes.base import Sandboxes, Templates
from aenv.settings import Settings
from aenv.telemetry.service import Telemetry
from aenv.templates.builder import Builder
from aenv.templates.uploads import Uploads


class RawPath:
    """Lets routes match the path as it was sent.

    An id with a `%2F` in it is one segment; servers decode the path before routing, which would make two.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replace the decoded path by the raw one."""
        if scope["type"] == "http":
            raw = scope.get("raw_path") or scope["path"].encode()
            scope = {**scope, "path": raw.decode("latin-1")}
        await self.app(scope, receive, send)


class Services(Protocol):
    """What the API is over: a node that has started."""

    @property
    def sandboxes(self) -> Sandboxes:
        """Operations on sandboxes."""

    @property
    def templates(self) -> Templates:
        """Templates and snapshots."""

    @property
    def builder(self) -> Builder:
        """What builds templates."""

    @property
    def uploads(self) -> Uploads:
        """Files for builds."""

    @property
    def telemetry(self) -> Telemetry:
        """Metrics and logs."""


def create_app(services: Services, auth: ApiKeys, settings: Settings) -> FastAPI:
    """The API over the given services."""
    sandboxes, templates, telemetry = services.sandboxes, services.templates, services.telemetry
    app = FastAPI(
        title="AgentENV", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    metrics = Metrics()
    errors.install(app)
    for router in (
        health_router(),
        metrics_router(sandboxes, metrics),
        listing_router(sandboxes),
        starting_router(sandboxes, settings),
        telemetry_router(sandboxes, telemetry),  # before the next: `metrics` is no sandbox id
        changing_router(sandboxes, settings),
        snapshots_router(templates),
        # The first that matches is taken: `aliases` and `tags` are words before they are names.
        aliases_router(templates),
        tags_router(templates),
        templates_router(templates),
        builds_router(templates, services.builder),
        build_control_router(services.builder),
        uploads_router(services.builder, services.uploads, UploadLinks(auth.key)),
        teams_router(auth.key),
        refused_router(),
    ):
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(ServerTiming)
    app.add_middleware(RequireKey, auth=auth)
    app.add_middleware(Metered, metrics=metrics)
    app.add_middleware(RawPath)
    app.add_middleware(errors.ErrorGuard, where="api")
    app.openapi = partial(schema.describe, app, settings)  # type: ignore[method-assign]
    return app
