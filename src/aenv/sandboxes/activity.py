"""Whether clients are busy, so that work that can wait doesn't compete with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_SECONDS = 0.8
"""How long clients must have been quiet before a pool is filled: filling competes for the CPU."""

PATIENCE_SECONDS = 5.0
"""After this long a pool is filled even though clients are busy."""


class Activity:
    """Knows whether clients are busy, so that background work can wait for a quiet moment."""

    def __init__(self) -> None:
        self._under_way = 0
        self._last = 0.0

    def touch(self) -> None:
        """A client did something just now."""
        self._last = asyncio.get_running_loop().time()

    @contextmanager
    def operation(self) -> Iterator[None]:
        """One operation under way."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()

    async def quiet(self) -> None:
        """Return at the next quiet moment, or when patience is at an end."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + PATIENCE_SECONDS
        while (now := loop.time()) < limit:
            rest = self._last + QUIET_SECONDS - now
            if self._under_way == 0 and rest <= 0:
                return
            await asyncio.sleep(max(rest, 0.05))
