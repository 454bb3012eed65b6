"""How many of a thing are likely to be asked for at once, from how many were lately."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_HALF_LIFE = 5.0
"""Seconds in which half of a burst is forgotten: about as long as it takes to make a few spares."""

MEMORY_HALF_LIFE = 120.0
"""Seconds in which half of the size of the greatest burst is forgotten."""


class Demand:
    """The size of the greatest burst in the last minutes; it fades while little is asked for.

    A burst is what was asked for within a few seconds: what comes later can be made anew by then. Both are
    weighted exponentially, so nothing but two numbers is kept. `clock` is in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._burst = 0.0
        self._greatest = 0.0

    def note(self) -> None:
        """One was asked for, whether there was one or not."""
        self._fade()
        self._burst += 1
        self._greatest = max(self._greatest, self._burst)

    @property
    def expected(self) -> int:
        """How many are likely to be asked for at once."""
        self._fade()
        return round(self._greatest)

    def _fade(self) -> None:
        now = self._clock()
        passed, self._at = now - self._at, now
        self._burst *= 0.5 ** (passed / BURST_HALF_LIFE)
        self._greatest *= 0.5 ** (passed / MEMORY_HALF_LIFE)
