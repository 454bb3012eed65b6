"""Trying again what failed for a reason that may pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from aenv.errors import RegistryUnavailable

log = structlog.get_logger()

T = TypeVar("T")


class Interrupted(Exception):
    """A server was too busy, failed or went away."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        """Seconds that it asked for, if it did."""


@dataclass(frozen=True)
class Patience:
    """How often and how fast to try again. Times are seconds."""

    attempts: int = 6
    first: float = 0.5
    """Doubled after each failure, with some chance in it."""
    longest: float = 20.0
    """A server that asks for more is not waited for."""


class Attempts:
    """Counts failures in a row and waits between them."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failures = 0

    def succeeded(self) -> None:
        """Something went forward, so later failures count anew."""
        self._failures = 0

    async def failed(self, error: Interrupted) -> None:
        """Wait for the next attempt. Raises RegistryUnavailable if there shall be none."""
        self._failures += 1
        patience = self._patience
        asked = error.retry_after
        if self._failures >= patience.attempts or (asked or 0) > patience.longest:
            raise RegistryUnavailable(error.reason, retry_after=asked) from error
        pause = min(patience.longest, patience.first * 2 ** (self._failures - 1))
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - so that many don't come back at once
        pause = max(pause, asked or 0)
        log.info("a registry is asked again soon", reason=error.reason, seconds=round(pause, 1))
        await asyncio.sleep(pause)


async def retried(work: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """The result of `work`, called again while it is Interrupted. Raises RegistryUnavailable in the end."""
    attempts = Attempts(patience)
    while True:
        try:
            return await work()
        except Interrupted as error:
            await attempts.failed(error)
