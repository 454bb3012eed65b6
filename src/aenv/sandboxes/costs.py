"""What a start takes of the host's memory, judged by what others like it took."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

FIRST_GUESS = 128 << 20
"""Bytes that a start is taken to need beside what it loads, while none of its kind was measured."""

FLOOR = 64 << 20
"""Bytes that it is taken to need at least: the guest's first command comes after it was measured."""

REMEMBERED = 32
"""Starts of a kind that are remembered; the dearest of them counts."""

KINDS = 64
"""Kinds of starts that are remembered, the most recently seen ones."""


class StartCosts:
    """Remembers, by kind, the bytes of memory that starts took of their own beside what they loaded."""

    def __init__(self) -> None:
        self._beside: OrderedDict[str, deque[int]] = OrderedDict()

    def expected(self, kind: str, loaded: int, most: int) -> int:
        """Bytes that a start of this kind will take which loads so many; never more than `most`."""
        measured: Sequence[int] = self._beside.get(kind, (FIRST_GUESS,))
        return min(loaded + max(FLOOR, *measured), most)

    def note(self, kind: str, loaded: int, taken: int) -> None:
        """A start of this kind took so many bytes; none if its VM has ended already."""
        if taken == 0:
            return
        self._beside.setdefault(kind, deque(maxlen=REMEMBERED)).append(taken - loaded)
        self._beside.move_to_end(kind)
        if len(self._beside) > KINDS:
            self._beside.popitem(last=False)
