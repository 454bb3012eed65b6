"""The server's own metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from aenv.api.metrics import Metrics
from aenv.sandboxes.base import Sandboxes


def metrics_router(sandboxes: Sandboxes, metrics: Metrics) -> APIRouter:
    """`GET /metrics`, open to anybody, like `/health`: it has numbers and no names."""
    router = APIRouter()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics_text() -> Response:
        content = metrics.text(await sandboxes.census())
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
