"""Samples of what each sandbox used lately, in memory."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass

from aenv.guest.reports import Metrics

KEPT_SECONDS = 3600.0
"""How old a sample gets."""

MOST_SAMPLES = 3600
"""Most samples of one sandbox, however often they are taken."""

_PACKED = struct.Struct("<IdQQQQQd")
"""A sample as bytes: thousands of sandboxes have hundreds of them each."""


@dataclass(frozen=True)
class Sample(Metrics):
    """What a sandbox used at one time (seconds since the epoch, by this server's clock)."""

    time: float

    @classmethod
    def of(cls, metrics: Metrics, time: float) -> Sample:
        """What a guest reported at `time`."""
        return cls(**asdict(metrics), time=time)


class Histories:
    """The last hour of each sandbox."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[bytes]] = {}

    def add(self, sandbox_id: str, sample: Sample) -> None:
        """Add a sample, newer than those before."""
        kept = self._samples.setdefault(sandbox_id, deque(maxlen=MOST_SAMPLES))
        kept.append(_PACKED.pack(*astuple(sample)))

    def between(self, sandbox_id: str, start: int | None, end: int | None) -> list[Sample]:
        """Samples from `start` to `end`, both inclusive, in whole seconds since the epoch; oldest first."""
        return [
            sample
            for sample in self._of(sandbox_id)
            if (start is None or int(sample.time) >= start) and (end is None or int(sample.time) <= end)
        ]

    def latest(self, sandbox_id: str) -> Sample | None:
        """The newest sample."""
        kept = self._samples.get(sandbox_id)
        return Sample(*_PACKED.unpack(kept[-1])) if kept else None

    def drop(self, sandbox_id: str) -> None:
        """Forget a sandbox."""
        self._samples.pop(sandbox_id, None)

    def prune(self, now: float) -> None:
        """Forget samples that are too old."""
        for sandbox_id, kept in list(self._samples.items()):
            while kept and _PACKED.unpack(kept[0])[-1] < now - KEPT_SECONDS:
                kept.popleft()
            if not kept:
                del self._samples[sandbox_id]

    def _of(self, sandbox_id: str) -> Iterator[Sample]:
        for packed in self._samples.get(sandbox_id, ()):
            yield Sample(*_PACKED.unpack(packed))
