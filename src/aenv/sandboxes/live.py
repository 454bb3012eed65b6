"""Which sandboxes have a running VM right now, and where their ports are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aenv.guest.client import EnvdClient
from aenv.runtimes.base import Resources
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Endpoint, Sandbox


@dataclass
class _Entry:
    machine: Machine
    endpoint: Endpoint
    open: bool = True
    waits_for_room: bool = False


class LiveSandboxes:
    """The machines of sandboxes that have one, and whether clients can reach them."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def add(self, sandbox: Sandbox, machine: Machine) -> None:
        """Open the sandbox's ports to clients."""
        endpoint = Endpoint(
            machine.place.slot.host_address,
            sandbox.envd_token,
            sandbox.traffic_token,
            mask_host=sandbox.network.get("maskRequestHost"),
            https_ports=frozenset(sandbox.network.get("httpsPorts", ())),
        )
        self._entries[sandbox.id] = _Entry(machine, endpoint)

    def machine(self, sandbox_id: str) -> Machine | None:
        """The machine, if the sandbox has one."""
        entry = self._entries.get(sandbox_id)
        return None if entry is None else entry.machine

    def machines(self) -> list[Machine]:
        """All machines."""
        return [entry.machine for entry in self._entries.values()]

    def resources(self) -> list[Resources]:
        """The sizes of all of them."""
        return [entry.machine.instance.resources for entry in self._entries.values()]

    def guests(self) -> dict[str, EnvdClient]:
        """The agents of all sandboxes that clients can reach."""
        return {each: entry.machine.guest for each, entry in self._entries.items() if entry.open}

    def endpoint(self, sandbox_id: str) -> Endpoint | None:
        """Where its ports are, if new traffic may go there."""
        entry = self._entries.get(sandbox_id)
        return entry.endpoint if entry is not None and entry.open else None

    def close(self, sandbox_id: str) -> None:
        """Let no new traffic in; what is under way goes on."""
        if (entry := self._entries.get(sandbox_id)) is not None:
            entry.open = False

    def reopen(self, sandbox_id: str) -> None:
        """Let new traffic in again."""
        if (entry := self._entries.get(sandbox_id)) is not None:
            entry.open = True
            entry.waits_for_room = False

    def wait_for_room(self, sandbox_id: str) -> None:
        """Let no new traffic in until `reopen`: the VM stands still because the host's disk is full."""
        if (entry := self._entries.get(sandbox_id)) is not None:
            entry.open = False
            entry.waits_for_room = True

    def waits_for_room(self, sandbox_id: str) -> bool:
        """Whether the sandbox has a machine that stands still."""
        entry = self._entries.get(sandbox_id)
        return entry is not None and entry.waits_for_room

    def remove(self, sandbox_id: str) -> Machine | None:
        """Forget the sandbox and cut its traffic; the machine is the caller's now."""
        entry = self._entries.pop(sandbox_id, None)
        if entry is None:
            return None
        entry.endpoint.gone.set()
        return entry.machine
