"""Whether the server answers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response


def health_router() -> APIRouter:
    """`GET /health`, open to anybody."""
    router = APIRouter()

    @router.get("/health", status_code=204)
    async def health() -> Response:
        return Response(status_code=204)

    return router
