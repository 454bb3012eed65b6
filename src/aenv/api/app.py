"""The API as one FastAPI application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from aenv.api import errors
from aenv.api.auth import ApiKeys, RequireKey
from aenv.api.routes.health import health_router
from aenv.api.routes.listing import listing_router
from aenv.api.routes.sandboxes import changing_router, starting_router
from aenv.api.routes.snapshots import snapshots_router
from aenv.api.routes.templates import templates_router
from aenv.api.timing import ServerTiming
from aenv.sandboxes.base import Sandboxes, Templates
from aenv.settings import Settings


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


def create_app(sandboxes: Sandboxes, templates: Templates, auth: ApiKeys, settings: Settings) -> FastAPI:
    """The API over the given services."""
    app = FastAPI(title="AgentENV", openapi_url=None, redirect_slashes=False)
    errors.install(app)
    for router in (
        health_router(),
        listing_router(sandboxes),
        starting_router(sandboxes, settings),
        changing_router(sandboxes, settings),
        snapshots_router(templates),
        templates_router(templates),
    ):
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(ServerTiming)
    app.add_middleware(RequireKey, auth=auth)
    app.add_middleware(RawPath)
    app.add_middleware(errors.ErrorGuard)
    return app
