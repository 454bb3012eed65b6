"""Slots without a network, for fast tests: every guest has a loopback address of its own."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Collection

from aenv.errors import Overloaded, RuntimeFailure
from aenv.network.base import GUEST_MAC, TAP_MAC, TAP_NAME, Slot

_PREFIXES = 224 * 256
_numbers = itertools.count(secrets.randbelow(_PREFIXES))
"""Each pool has a 127.x.y.0/24 of its own; the first is drawn by lot, as other processes have pools, too."""


class FakeSlotPool:
    """A NetworkPool in memory."""

    def __init__(self, *, limit: int = 254) -> None:
        self._limit = limit
        self._prefix = "127.{}.{}".format(*divmod(16 * 256 + next(_numbers) % _PREFIXES, 256))
        self.in_use: dict[int, Slot] = {}

    async def start(self, *, keep: Collection[Slot] = ()) -> None:
        """Count the slots `keep` as in use."""
        self.in_use = {slot.index: slot for slot in keep if slot == self.slot(slot.index)}

    async def acquire(self) -> Slot:
        """Hand out the free slot with the lowest index."""
        if len(self.in_use) >= self._limit:
            raise Overloaded(f"all {self._limit} network slots are in use", retry_after=5)
        slot = self.slot(next(index for index in range(1, self._limit + 1) if index not in self.in_use))
        self.in_use[slot.index] = slot
        return slot

    async def release(self, slot: Slot) -> None:
        """Take a slot back."""
        self.in_use.pop(slot.index, None)

    async def adopt(self, slot: Slot) -> None:
        """Go on using a slot that `start` kept."""
        if self.in_use.get(slot.index) != slot:
            raise RuntimeFailure(f"network slot {slot.namespace} did not survive")

    async def leave(self, slot: Slot) -> None:
        """Nothing to do: `close` removes nothing that a VM needs."""

    def open_tap(self, slot: Slot) -> int:
        """A descriptor that swallows what is written and has nothing to read."""
        if slot.index not in self.in_use:
            raise RuntimeFailure(f"cannot open the network device of slot {slot.namespace}")
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    async def close(self) -> None:
        """Forget all slots."""
        self.in_use.clear()

    def slot(self, index: int) -> Slot:
        """The slot with this index, in use or not."""
        return Slot(
            index=index,
            namespace=f"fake-{index}",
            tap=TAP_NAME,
            host_address=f"{self._prefix}.{index}",
            guest_mac=GUEST_MAC,
            tap_mac=TAP_MAC,
        )
