"""How much may run at a time: the vCPUs and the memory of all running sandboxes together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from aenv.errors import LimitReached
from aenv.runtimes.base import Resources
from aenv.sandboxes.models import Limits
from aenv.sandboxes.turns import spread

RETRY_SECONDS = 5.0
"""When a sandbox that didn't fit is worth another try: nobody knows when others end."""


class Admission:
    """Admits sandboxes within the limits.

    What runs is asked of `running` each time, so that nothing has to be counted up and down, not even over
    a restart; what is being started is reserved here until it runs or has failed.
    """

    def __init__(self, limits: Limits, running: Callable[[], Iterable[Resources]]) -> None:
        self.limits = limits
        self._running = running
        self._starting: list[Resources] = []

    @contextmanager
    def reserve(self, resources: Resources) -> Iterator[None]:
        """Room for one sandbox while the block starts it; in its end it runs. Raises LimitReached."""
        self.check(resources)
        with self.count(resources):
            yield

    @contextmanager
    def count(self, resources: Resources) -> Iterator[None]:
        """So much is in use during the block, whether there is room for it or not."""
        self._starting.append(resources)
        try:
            yield
        finally:
            self._starting.remove(resources)

    def check(self, resources: Resources) -> None:
        """Raise LimitReached unless there is room for one sandbox of this size."""
        used, limits = self.used(), self.limits
        _check("vCPUs", used.cpus, resources.cpu_count, limits.cpus, "AENV_CPU_OVERCOMMIT")
        _check("MiB", used.memory_mib, resources.memory_mib, limits.memory_mib, "AENV_MEMORY_OVERCOMMIT")

    def used(self) -> Limits:
        """What all sandboxes that run or are being started have together."""
        every = [*self._running(), *self._starting]
        return Limits(sum(each.cpu_count for each in every), sum(each.memory_mib for each in every))


def _check(unit: str, used: float, wanted: int, limit: float, setting: str) -> None:
    if used + wanted > limit:
        raise LimitReached(
            f"running sandboxes have {used:g} of the {limit:g} {unit} that they may have together on this "
            f"server, and this one needs {wanted}: pause or kill some, or raise {setting}",
            retry_after=spread(RETRY_SECONDS),
        )
