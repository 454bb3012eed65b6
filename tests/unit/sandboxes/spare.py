"""What tests keep in pools."""

from __future__ import annotations

from dataclasses import dataclass

from aenv.host import MemoryUse


@dataclass(eq=False)
class Thing:
    """A spare that is nothing but its size."""

    key: str
    size: int = 1
    ended: bool = False

    def memory(self) -> MemoryUse:
        """What it says it holds."""
        return MemoryUse(private=0 if self.ended else self.size)


async def make(key: str) -> Thing:
    """One more."""
    return Thing(key)


async def end(thing: Thing) -> None:
    """It holds nothing any more."""
    thing.ended = True
