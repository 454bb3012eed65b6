"""Machines of paused sandboxes, kept stopped in memory: a resume from here is the quickest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from aenv.sandboxes.machines import Machine


class StoppedMachines:
    """At most `most` of them; their state is on disk already, so giving one up loses nothing.

    The coldest, that was paused the longest ago, goes first. `destroy` ends one.
    """

    name = "stopped"

    def __init__(self, most: int, destroy: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
        self.hits = self.misses = 0
        """Resumes that found their machine, and those that didn't."""
        self._most = most
        self._destroy = destroy
        self._machines: OrderedDict[str, Machine] = OrderedDict()

    def put(self, sandbox_id: str, machine: Machine) -> list[Machine]:
        """Keep a machine; returns those that the caller must destroy to stay within the size."""
        self._machines[sandbox_id] = machine
        given_up = []
        while len(self._machines) > self._most:
            given_up.append(self._machines.popitem(last=False)[1])
        return given_up

    def get(self, sandbox_id: str) -> Machine | None:
        """The machine if it is still here, where it stays."""
        return self._machines.get(sandbox_id)

    def take(self, sandbox_id: str) -> Machine | None:
        """The machine, now the caller's, if it is still here: for a resume."""
        machine = self.remove(sandbox_id)
        if self._most > 0:
            self.hits += machine is not None
            self.misses += machine is None
        return machine

    def remove(self, sandbox_id: str) -> Machine | None:
        """The machine, now the caller's, if it is still here: to end it."""
        return self._machines.pop(sandbox_id, None)

    def take_all(self) -> list[Machine]:
        """Every machine, now the caller's."""
        machines = list(self._machines.values())
        self._machines.clear()
        return machines

    def ready(self) -> list[Machine]:
        """All of them, coldest first."""
        return list(self._machines.values())

    def give_up(self) -> Coroutine[Any, Any, None] | None:
        """Take out the coldest; the caller awaits its end. None if there is none."""
        if not self._machines:
            return None
        return self._destroy(self._machines.popitem(last=False)[1])

    def count(self) -> int:
        """How many there are."""
        return len(self._machines)

    def wanted(self) -> int:
        """How many there should be: those that there are, as none can be made."""
        return len(self._machines)
