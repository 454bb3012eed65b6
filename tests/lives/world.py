"""The seam between the state machine and what it is tried on: a node somewhere, and the guests of its VMs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol, TypeVar

from aenv.node import Node
from aenv.runtimes.base import Capture
from tests.lives.model import Seen

T = TypeVar("T")


class World(Protocol):
    """One node after the other on one home folder. A node's database is a `FailingDatabase`."""

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What `function`, which gets the node before its arguments, returns where the node is.

        A node may be in a process of its own: function, arguments, results and errors can be pickled.
        """

    def order_failure(self, node: Node, step: str) -> None:
        """Let the next `step` of the runtime fail. Called where the node is; can be pickled."""

    def drop_failures(self, node: Node) -> None:
        """Forget the failures that didn't come. Called where the node is; can be pickled."""

    def began(self, sandbox_id: str) -> None:
        """A sandbox has just been booted, or started from the base: nothing of a client runs in it yet."""

    def put(self, sandbox_id: str, key: str, value: int, *, disk: bool) -> None:
        """Write a value into the memory of a running sandbox, or into a file."""

    def look(self, sandbox_id: str, *, cold: bool = False) -> Seen:
        """What is in a running sandbox, which can be reached as itself; `cold`, files come from its disk."""

    def look_into(self, capture: Capture) -> Seen | None:
        """What is in a capture, if that can be told without starting it."""

    def kill_vmm(self, sandbox_id: str) -> None:
        """Kill the VMM of a running sandbox."""

    def restart(self) -> None:
        """Stop the server as an administrator does, and start another one."""

    def crash(self, dead: Collection[str]) -> None:
        """Kill the server and the VMMs of running sandboxes; another one starts."""

    def crash_amid(self, function: Callable[..., Awaitable[Any]], *arguments: Any, moment: int) -> None:
        """Call it, and kill the server at one of 100 moments of that; another one starts."""

    def check_leaks(self, instances: Collection[str]) -> None:
        """Nothing but these instances, by the names of their folders, has anything on the host."""

    def note(self, step: str) -> None:
        """A step begins."""

    def close(self) -> None:
        """Stop the server and remove its folders; nothing may be left."""
