"""The network seam: what a sandbox gets, and the pool that hands it out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

GUEST_ADDRESS: Final = "169.254.0.21"
"""The guest's own address, the same in every VM, because a snapshot contains it."""
GATEWAY_ADDRESS: Final = "169.254.0.22"
"""The host side of the guest's link, its default gateway."""
GUEST_PREFIX: Final = 30
GUEST_MAC: Final = "02:ae:00:00:00:15"
TAP_MAC: Final = "02:ae:00:00:00:16"
"""Both ends of the guest's link keep their MAC: a snapshot also contains the guest's neighbour entry."""
TAP_NAME: Final = "tap0"


@dataclass(frozen=True)
class Slot:
    """The network of one sandbox.

    `host_address` is where this host reaches the guest. `namespace` is the name under `/run/netns`, and `tap`
    the interface inside it that the VMM attaches to.
    """

    index: int
    namespace: str
    tap: str
    host_address: str
    guest_mac: str
    tap_mac: str


class NetworkPool(Protocol):
    """Slots made ahead of use. All methods but `open_tap` belong to one event loop."""

    async def start(self, *, keep: Collection[Slot] = ()) -> None:
        """Prepare the host, remove what an earlier run left except the slots `keep`, make slots ahead.

        Raises HostNotReady if the host lacks a tool, a permission or free addresses.
        """

    async def acquire(self) -> Slot:
        """Hand out a clean slot. Raises Overloaded at the limit, HostNotReady if none can be made."""

    async def release(self, slot: Slot) -> None:
        """Take a slot back once its VM has ended; nothing of this tenant reaches the next one.

        Releasing a slot that is not in use does nothing.
        """

    async def adopt(self, slot: Slot) -> None:
        """Go on using a slot that `start` kept.

        Raises RuntimeFailure if it is gone, or has other addresses in this pool.
        """

    async def leave(self, slot: Slot) -> None:
        """Let `close` keep a slot in use, and the host as it is set up, for the VM that goes on there."""

    def open_tap(self, slot: Slot) -> int:
        """Open the slot's tap for a VMM; blocking, call it in a thread.

        Returns a new close-on-exec file descriptor that the caller owns (`IFF_TAP | IFF_NO_PI |
        IFF_VNET_HDR`).
        Raises RuntimeFailure if the slot is gone or another VMM holds its tap.
        """

    async def close(self) -> None:
        """Remove every slot, in use or not, and all that was set up on the host.

        Slots that `start` kept and nobody has adopted or released stay: a VM that this server had nothing to
        do with lives there.
        """
