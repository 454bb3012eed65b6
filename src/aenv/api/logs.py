"""Logging of the server process: to stderr, for people at a terminal and for files alike."""

from __future__ import annotations

import logging
import sys

import structlog


def configure() -> None:
    """Set up structlog once, for the whole process.

    Tracebacks are plain: the library's own choice would print local variables, and with them keys and
    tokens.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through the standard library's logging; what they call a warning matters.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
