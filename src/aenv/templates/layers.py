"""How far the layers of the image are that a build begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerProgress:
    """`done` of `total` bytes of a layer are here; the total may not be known."""

    digest: str
    done: int
    total: int | None


class Layers:
    """The layers that were fetched for one build, in the order in which they were begun."""

    def __init__(self) -> None:
        self._known: dict[str, LayerProgress] = {}

    def layer(self, digest: str, done: int, total: int | None) -> None:
        """See `aenv.images.models.FetchProgress`."""
        self._known[digest] = LayerProgress(digest, done, total)

    def now(self) -> Sequence[LayerProgress]:
        """How far each is."""
        return tuple(self._known.values())
