"""Failures that envd reports, with the Connect code that says what kind they are.

Codes and their HTTP statuses: https://connectrpc.com/docs/protocol/#error-codes
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from aenv.errors import AenvError, Retry


class Code(StrEnum):
    """The Connect error codes."""

    CANCELED = "canceled"
    UNKNOWN = "unknown"
    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    PERMISSION_DENIED = "permission_denied"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    ABORTED = "aborted"
    OUT_OF_RANGE = "out_of_range"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    DATA_LOSS = "data_loss"
    UNAUTHENTICATED = "unauthenticated"

    @property
    def http_status(self) -> int:
        """The status a unary answer with this code has."""
        return _STATUS_OF.get(self, 500)


_STATUS_OF = {
    Code.CANCELED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}

_CODE_OF = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    406: Code.INVALID_ARGUMENT,
    409: Code.ALREADY_EXISTS,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELED,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
    507: Code.RESOURCE_EXHAUSTED,
}
"""For answers that aren't Connect's: envd's REST routes and the proxy before it."""

_TEMPORARY = frozenset({Code.UNAVAILABLE, Code.ABORTED, Code.RESOURCE_EXHAUSTED})
_UNDECIDED = frozenset({Code.UNKNOWN, Code.INTERNAL, Code.CANCELED, Code.DEADLINE_EXCEEDED, Code.DATA_LOSS})


MAX_MESSAGE = 4096
"""Characters kept of an error's message. A guest may have replaced its agent: its text is believed no more
than its numbers, and sent on as UTF-8 whatever it holds."""


class GuestError(AenvError):
    """envd, or the proxy in front of it, answered with an error."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = code.http_status
        if code in _TEMPORARY:
            self.retry = Retry.TRANSIENT
        elif code not in _UNDECIDED:
            self.retry = Retry.PERMANENT


def error_of_fields(fields: Any, default: Code = Code.UNKNOWN) -> GuestError:
    """The error that `{"code": …, "message": …}` states; what is missing or unknown becomes `default`."""
    if not isinstance(fields, dict):
        return GuestError(default, "envd reported an error without details")
    try:
        code = Code(fields.get("code", ""))
    except ValueError:
        code = default
    message = fields.get("message")
    if not isinstance(message, str) or not message:
        return GuestError(code, code.value)
    return GuestError(code, message[:MAX_MESSAGE].encode("utf-8", "replace").decode())


def error_of_response(status: int, body: bytes) -> GuestError:
    """The error of an HTTP answer that isn't a success, in any of the forms envd and the proxy use."""
    default = _CODE_OF.get(status, Code.INTERNAL if status >= 500 else Code.UNKNOWN)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        text = body[:200].decode("utf-8", "replace").strip() or "no text"
        return GuestError(default, f"the guest answered with HTTP status {status}: {text}")
    return error_of_fields(fields, default)
