"""Failures that nobody foresaw: each is logged with its traceback and counted, wherever it is caught."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

ERRORS = Counter(
    "aenv_unexpected_errors",
    "Failures that nobody foresaw, by the part of the server in which they surfaced; the log has each.",
    ["where"],
    registry=None,  # one process may hold several servers, each with its own registry
)
"""Counts for the life of the process. Anything above zero is a bug of this program."""

PLACES = ("api", "proxy", "sandboxes", "pools", "room", "compaction", "guests", "tasks", "loop")
"""Values of the label `where`."""

for place in PLACES:
    ERRORS.labels(place)  # there from the start, so that an alert needs no first failure

_COUNTED = "_aenv_counted"


def note(where: str, event: str, error: BaseException, **fields: object) -> None:
    """Log `error` with its traceback; count it unless it has been counted on its way up already."""
    log.error(event, exc_info=error, **fields)
    if not hasattr(error, _COUNTED):
        setattr(error, _COUNTED, True)
        ERRORS.labels(where).inc()


def in_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler for event loops: for failures of callbacks, and of tasks nobody awaited."""
    error = context.get("exception")
    if isinstance(error, Exception) and not isinstance(error, ConnectionError):  # clients come and go
        note("loop", str(context.get("message")), error)
    else:
        loop.default_exception_handler(context)
