"""How operations follow each other: one at a time, a short while apart, or all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

STAGGER_SECONDS = 0.25
"""From one start to the next."""


class Mode(StrEnum):
    """How often the next operation begins."""

    SEQUENTIAL = "sequential"
    STAGGERED = "staggered"
    BURST = "burst"


@dataclass(frozen=True)
class Pace:
    """`runs` operations in a mode."""

    mode: Mode
    runs: int

    @property
    def gap(self) -> float:
        """Seconds from one start to the next in a batch."""
        return STAGGER_SECONDS if self.mode is Mode.STAGGERED else 0.0

    def batches(self) -> list[int]:
        """How many are led through everything together, batch after batch."""
        return [1] * self.runs if self.mode is Mode.SEQUENTIAL else [self.runs]

    async def each(self, things: Sequence[T], operation: Callable[[T], Awaitable[U]]) -> list[U]:
        """Do something with the members of one batch; the results in their order."""

        async def one(index: int, thing: T) -> U:
            await asyncio.sleep(index * self.gap)
            return await operation(thing)

        return await asyncio.gather(*(one(index, thing) for index, thing in enumerate(things)))
