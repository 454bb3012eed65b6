"""Logging of the server process: to stderr, for people at a terminal and for files alike."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(form: Literal["text", "json"]) -> None:
    """Set up structlog once, for the whole process: lines for people, or one JSON object each.

    Tracebacks are plain: the library's own choice would print local variables, and with them keys and
    tokens.
    """
    last: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
    if form == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through the standard library's logging; what they call a warning matters.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
