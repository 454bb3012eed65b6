"""Names and addresses of slots, computed from the slot's index alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from aenv.errors import InvalidRequest
from aenv.network.base import GUEST_MAC, TAP_MAC, TAP_NAME, Slot

DEFAULT_SLOT_NETWORK = IPv4Network("10.11.0.0/16")
DEFAULT_VETH_NETWORK = IPv4Network("10.12.0.0/16")
LINK_LOCAL = IPv4Network("169.254.0.0/16")

_TAG = re.compile(r"[0-9a-f]{4,6}")
_ANY_VETH = re.compile(r"av[0-9a-f]{4,6}x[0-9]{1,5}")
_WIDEST_PREFIX = 8
"""Routes wider than this are defaults (also VPNs' 0.0.0.0/1), not networks in use."""


@dataclass(frozen=True)
class HostRoute:
    """A route of the host: its destination and the name of its interface ("" if it has none)."""

    destination: IPv4Network
    interface: str


@dataclass(frozen=True)
class SlotPlan:
    """How one server names and numbers its slots.

    `tag` is 4 to 6 hex digits that no other server on the host uses: interface names hold 15 characters, and
    `av` + 6 + `x` + 5 digits are 14. Raises InvalidRequest for a wrong tag or unusable networks.
    """

    tag: str
    slot_network: IPv4Network = DEFAULT_SLOT_NETWORK
    veth_network: IPv4Network = DEFAULT_VETH_NETWORK

    def __post_init__(self) -> None:
        if not _TAG.fullmatch(self.tag):
            raise InvalidRequest(f"network tag {self.tag!r} must be 4 to 6 hexadecimal digits")
        networks = (self.slot_network, self.veth_network, LINK_LOCAL)
        for position, one in enumerate(networks):
            for other in networks[position + 1 :]:
                if one.overlaps(other):
                    raise InvalidRequest(f"network ranges {one} and {other} overlap")
        if self.capacity < 1:
            raise InvalidRequest(f"network ranges {self.slot_network} and {self.veth_network} are too small")

    @property
    def capacity(self) -> int:
        """Highest index; indexes start at 1. The last slot address is a broadcast address, so unused."""
        return min(self.slot_network.num_addresses - 2, self.veth_network.num_addresses // 2 - 1, 99_999)

    @property
    def table(self) -> str:
        """Name of the nftables table on the host."""
        return f"aenv_{self.tag}"

    @property
    def veth_prefix(self) -> str:
        """What the names of this server's links on the host start with."""
        return f"av{self.tag}x"

    @property
    def link_group(self) -> int:
        """Interface group for removing many links at once; its high byte keeps clear of common ones."""
        return 0x41000000 | int(self.tag, 16)

    def namespace(self, index: int) -> str:
        """Name of a slot's namespace."""
        return f"aenv-{self.tag}-{index}"

    def veth(self, index: int) -> str:
        """Name of the host's end of a slot's link."""
        return f"{self.veth_prefix}{index}"

    def index_of_namespace(self, name: str) -> int | None:
        """The slot that a namespace belongs to; None if it isn't ours."""
        return _suffix(name, f"aenv-{self.tag}-")

    def index_of_veth(self, name: str) -> int | None:
        """The slot that a host interface belongs to; None if it isn't ours."""
        return _suffix(name, self.veth_prefix)

    def host_address(self, index: int) -> IPv4Address:
        """Where the host reaches the slot's guest."""
        return self.slot_network[index]

    def veth_host(self, index: int) -> IPv4Address:
        """The host's end of the /31 into the namespace."""
        return self.veth_network[2 * index]

    def veth_inside(self, index: int) -> IPv4Address:
        """The namespace's end of the /31."""
        return self.veth_network[2 * index + 1]

    def slot(self, index: int) -> Slot:
        """The slot with this index."""
        return Slot(
            index=index,
            namespace=self.namespace(index),
            tap=TAP_NAME,
            host_address=str(self.host_address(index)),
            guest_mac=GUEST_MAC,
            tap_mac=TAP_MAC,
        )

    def conflict(self, routes: Iterable[HostRoute]) -> HostRoute | None:
        """The first route that some other network on the host uses within our ranges."""
        for route in routes:
            if _ANY_VETH.fullmatch(route.interface) or route.destination.prefixlen < _WIDEST_PREFIX:
                continue
            if route.destination.overlaps(self.slot_network) or route.destination.overlaps(self.veth_network):
                return route
        return None

    def occupied(self, routes: Iterable[HostRoute]) -> frozenset[int]:
        """Indexes whose addresses belong to slots of other servers on this host.

        A link is two addresses of `veth_network`, so half its offset is an index.
        """
        taken: set[int] = set()
        for route in routes:
            if not _ANY_VETH.fullmatch(route.interface) or route.interface.startswith(self.veth_prefix):
                continue
            first = route.destination.network_address
            if first in self.slot_network:
                taken.add(int(first) - int(self.slot_network.network_address))
            elif first in self.veth_network:
                taken.add((int(first) - int(self.veth_network.network_address)) // 2)
        return frozenset(taken)


def _suffix(name: str, prefix: str) -> int | None:
    digits = name.removeprefix(prefix)
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None
