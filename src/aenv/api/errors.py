"""Turns every failure into the E2B contract's error body, for the API and the proxy alike.

The body is `{"code": <int>, "message": "<text>"[, "error_code": "<text>"]}`. The JavaScript SDK reads the
status from the body, so `code` always equals the HTTP status.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aenv import unexpected
from aenv.errors import AenvError, Retry

log = structlog.get_logger(__name__)

_MAX_LISTED = 3
"""Validation failures named in one message; more don't help a reader."""

_UNKNOWN = "not a field that this server knows"


def json_response(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response with a ready body."""
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(content, status, dict(headers or {}), media_type="application/json")


def error_body(error: AenvError) -> dict[str, Any]:
    """The contract's body for `error`."""
    body: dict[str, Any] = {"code": error.status, "message": error.message}
    if error.error_code is not None:
        body["error_code"] = error.error_code
    return body


def retry_headers(error: AenvError) -> dict[str, str]:
    """What tells the E2B SDK whether to send the request again.

    `Should-Retry` beats the SDK's own list of statuses; `Retry-After` is in whole seconds.
    """
    headers: dict[str, str] = {}
    if error.retry is Retry.TRANSIENT:
        headers["Should-Retry"] = "true"
        if error.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif error.retry is Retry.UNKNOWN:
        headers["Should-Retry"] = "false"
    return headers


def error_response(error: AenvError) -> Response:
    """The whole HTTP response for `error`."""
    return json_response(error.status, error_body(error), retry_headers(error))


def internal_error() -> Response:
    """The response for a failure nobody foresaw; its details are in the log only."""
    body = {"code": 500, "message": "internal server error; the server's log has the details"}
    return json_response(500, body, {"Should-Retry": "false"})


def validation_message(failures: Iterable[Mapping[str, Any]]) -> str:
    """One readable line that names each wrong field, from pydantic's list of failures."""
    lines = []
    for failure in failures:
        if failure["type"] == "json_invalid":
            return f"malformed JSON: {failure.get('ctx', {}).get('error', failure['msg'])}"
        unknown = failure["type"] == "extra_forbidden"
        lines.append(f"{_field(failure['loc'])}: {_UNKNOWN if unknown else failure['msg']}")
    shown = "; ".join(lines[:_MAX_LISTED])
    return shown if len(lines) <= _MAX_LISTED else f"{shown}; and {len(lines) - _MAX_LISTED} more"


def _field(location: Sequence[str | int]) -> str:
    """`network.allowOut.0` for a place in the body, `limit` for a query parameter."""
    names = [str(part) for part in location if part not in {"body", "query", "path", "header"}]
    return ".".join(names) or "body"


def install(app: FastAPI) -> None:
    """Make `app` answer every failure in the contract's form."""
    app.add_exception_handler(AenvError, _on_aenv_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_aenv_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AenvError)  # noqa: S101 -- registered for this type only
    if error.status >= 500:
        sandbox = request.path_params.get("sandbox_id")
        known = {} if sandbox is None else {"sandbox": sandbox}
        place = {"method": request.method, "path": request.url.path}
        log.warning("request failed", **place, **known, error=error.message)
    return error_response(error)


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for this type only
    return json_response(400, {"code": 400, "message": validation_message(error.errors())})


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and methods, raised by the router."""
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for this type only
    asked = f"{request.method} {request.url.path}"
    messages = {404: f"route not found: {asked}", 405: f"method not allowed: {asked}"}
    message = messages.get(error.status_code, str(error.detail))
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return json_response(error.status_code, {"code": error.status_code, "message": message}, headers)


def _allowed(request: Request) -> str:
    """The methods that are described for the path; the router names only those of its first route."""
    routes = [route for route in iter_route_contexts(request.app.routes) if route.methods]
    path = next(route.path for route in routes if route.path_regex.match(request.scope["path"]))
    return ", ".join(
        sorted({method for route in routes if route.path == path for method in route.methods or ()})
    )


class ClientLeft(Exception):
    """The client went away while it was being answered. No `OSError`: those are failures of the server's own
    connections.
    """


class ErrorGuard:
    """Outermost layer of an application: an unforeseen exception is noted and answered with a 500.

    `where` is a label of `aenv.unexpected`.
    """

    def __init__(self, app: ASGIApp, where: str) -> None:
        self.app = app
        self.where = where

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; if it fails after its response began, the connection is broken off."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            try:
                await send(message)
            except OSError as error:  # what ASGI says of a client that is gone
                raise ClientLeft from error

        try:
            await self.app(scope, receive, watched)
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 -- noted in full
            place = {"method": scope.get("method"), "path": scope.get("path")}
            unexpected.note(self.where, "unforeseen failure", error, **place)
            if not started and scope["type"] == "http":
                await internal_error()(scope, receive, send)
