"""Routes of the E2B contract that this server doesn't serve yet: refused with words, not with a 404."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from aenv.api.models import Failure, ResponseBody
from aenv.errors import InvalidRequest

_VOLUMES = "volumes are not supported yet"
_SECRETS = "secrets are not supported yet"
_OLD_BUILDS = "building templates in this older way is not supported yet: use POST /v3/templates"

_REFUSED = (
    ("/volumes", ("GET", "POST"), _VOLUMES),
    ("/volumes/{volume_id}", ("GET", "DELETE"), _VOLUMES),
    ("/secrets", ("GET", "POST"), _SECRETS),
    ("/secrets/{secret_id}", ("GET", "POST", "DELETE"), _SECRETS),
    ("/templates", ("POST",), _OLD_BUILDS),
    ("/v2/templates", ("POST",), _OLD_BUILDS),
    ("/templates/{name}", ("POST",), _OLD_BUILDS),
    ("/templates/{name}/builds/{build_id}", ("POST",), _OLD_BUILDS),
)

_VOLUME_CONTENT = (
    ("/volumecontent/{volume_id}/path", ("GET", "PATCH", "DELETE")),
    ("/volumecontent/{volume_id}/dir", ("GET", "POST")),
    ("/volumecontent/{volume_id}/file", ("GET", "PUT")),
)


class ContentFailure(ResponseBody):
    """An error of `/volumecontent`: this part of the contract has its codes as texts."""

    code: str
    message: str


def refused_router() -> APIRouter:
    """Volumes, secrets, and old ways to build templates."""
    router = APIRouter()
    for path, methods, message in _REFUSED:
        for method in methods:
            router.add_api_route(path, _refusal(message), methods=[method], status_code=400)
    for path, methods in _VOLUME_CONTENT:
        for method in methods:
            router.add_api_route(
                path, _volume_content, methods=[method], status_code=400, response_model=ContentFailure
            )
    return router


def _refusal(message: str) -> Callable[[], Awaitable[Failure]]:
    async def refuse() -> Failure:
        raise InvalidRequest(message)

    return refuse


async def _volume_content() -> ContentFailure:
    return ContentFailure(code="400", message=_VOLUMES)
