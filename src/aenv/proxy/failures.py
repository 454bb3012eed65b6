"""What a client is told when its request can't reach the sandbox.

The E2B SDKs look for the words "was not found" and "port is not open" in the message of a 502.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from aenv.api.errors import json_response


def _failure(status: int, sandbox_id: str, message: str, port: int | None = None) -> Response:
    body: dict[str, Any] = {"sandboxId": sandbox_id, "message": message, "code": status}
    if port is not None:
        body["port"] = port
    return json_response(status, body)


def sandbox_not_found(sandbox_id: str) -> Response:
    """The sandbox doesn't exist, is paused, or is gone."""
    return _failure(502, sandbox_id, "The sandbox was not found")


def port_closed(sandbox_id: str, port: int) -> Response:
    """The sandbox runs, and nothing in it listens on the port."""
    return _failure(502, sandbox_id, "The sandbox is running but port is not open", port)


def unreachable(sandbox_id: str, port: int) -> Response:
    """The sandbox runs, and doesn't take part in the network."""
    return _failure(502, sandbox_id, "The sandbox is running but can't be reached", port)


def bad_answer(sandbox_id: str, port: int, problem: str) -> Response:
    """What listens on the port took the request and then gave no proper answer."""
    message = f"The sandbox is running but its answer could not be read: {problem}"
    return _failure(502, sandbox_id, message, port)


def body_stalled(sandbox_id: str) -> Response:
    """The client let the sandbox wait for the rest of its request."""
    message = "The request's body stood still for longer than AENV_MAX_UPLOAD_IDLE allows"
    response = _failure(408, sandbox_id, message)
    response.headers["connection"] = "close"  # the rest may come yet, and is no request
    return response


def token_needed(sandbox_id: str) -> Response:
    """The traffic token is missing or wrong."""
    return _failure(403, sandbox_id, "The header e2b-traffic-access-token is missing or wrong")


def route_hidden(sandbox_id: str) -> Response:
    """The route is for the server alone."""
    return _failure(404, sandbox_id, "There is no such route")


def of(error: Exception, sandbox_id: str, port: int) -> Response:
    """The answer for what a running sandbox made of a request."""
    if isinstance(error, ConnectionRefusedError):
        return port_closed(sandbox_id, port)
    if isinstance(error, OSError):  # TimeoutError is one
        return unreachable(sandbox_id, port)
    return bad_answer(sandbox_id, port, str(error))
