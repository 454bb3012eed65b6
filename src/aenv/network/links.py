"""Links, addresses, routes and tracked connections, through netlink.

Every function works in the namespace of the calling thread, with a socket of its own: pyroute2's sockets
belong to the thread and namespace that opened them. NetlinkError is translated to OSError.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET, if_nametoindex
from typing import Any, Final

from pyroute2 import Conntrack, IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple

from aenv.network.base import GATEWAY_ADDRESS, GUEST_ADDRESS, GUEST_MAC, GUEST_PREFIX, TAP_MAC
from aenv.network.plan import HostRoute

_LOOPBACK: Final = 1
_ONLINK: Final = 4  # RTNH_F_ONLINK, linux/rtnetlink.h
_UNICAST: Final = 1  # RTN_UNICAST
_LOCAL: Final = 2  # RTN_LOCAL
_PERMANENT: Final = 0x80  # NUD_PERMANENT, linux/neighbour.h


@contextmanager
def _netlink() -> Iterator[Any]:
    with _translated(), IPRoute() as netlink:
        yield netlink


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, error.args[-1]) from error


def connect_namespace(
    *, uplink: str, tap: str, veth: str, host: int, inside: IPv4Address, gateway: IPv4Address
) -> None:
    """Wire up the new namespace of this thread: loopback, the veth pair with its end `veth` in the namespace
    `host` (a file descriptor), the default route, and the guest's side of an existing tap.

    The guest's neighbour entry is permanent, so that the first packet to a resumed guest waits for no ARP.
    """
    with _netlink() as netlink:
        netlink.link("add", ifname=uplink, kind="veth", peer={"ifname": veth, "net_ns_fd": host})
        outer = if_nametoindex(uplink)
        guest = if_nametoindex(tap)
        netlink.link("set", index=_LOOPBACK, state="up")
        netlink.addr("add", index=outer, address=str(inside), prefixlen=31)
        netlink.link("set", index=outer, state="up")
        netlink.route("add", dst="0.0.0.0/0", gateway=str(gateway), oif=outer)
        netlink.link("set", index=guest, address=TAP_MAC)
        netlink.addr("add", index=guest, address=GATEWAY_ADDRESS, prefixlen=GUEST_PREFIX)
        netlink.link("set", index=guest, state="up")
        netlink.neigh("add", dst=GUEST_ADDRESS, lladdr=GUEST_MAC, ifindex=guest, state="permanent")


def connect_host(
    *, veth: str, group: int, address: IPv4Address, inside: IPv4Address, host_address: IPv4Address
) -> None:
    """Bring up the host's end of a veth and route a slot's address through it.

    The route is what claims the address on this host: FileExistsError if another server has it.
    """
    with _netlink() as netlink:
        index = if_nametoindex(veth)
        netlink.link("set", index=index, state="up", group=group)
        netlink.route(
            "add", dst=str(host_address), dst_len=32, gateway=str(inside), oif=index, flags=_ONLINK, scope=0
        )
        netlink.addr("add", index=index, address=str(address), prefixlen=31)


def delete_link(name: str) -> None:
    """Remove one link; missing is fine. Takes 10 to 30 ms: the kernel waits for readers."""
    try:
        index = if_nametoindex(name)
    except OSError:
        return
    with _netlink() as netlink:
        _delete(netlink, index=index)


def delete_links(names: Iterable[str], group: int) -> None:
    """Remove many links with one wait, by way of an interface group that holds nothing else."""
    chosen = set(names)
    if not chosen:
        return
    with _netlink() as netlink:
        for link in netlink.get_links():
            member = link.get_attr("IFLA_IFNAME") in chosen
            if member != (link.get_attr("IFLA_GROUP") == group):
                netlink.link("set", index=link["index"], group=group if member else 0)
        _delete(netlink, group=group)


def _delete(netlink: Any, **which: int) -> None:
    try:
        netlink.link("del", **which)
    except NetlinkError as error:
        if error.code != errno.ENODEV:  # gone already
            raise


def routes() -> list[HostRoute]:
    """All IPv4 routes to networks and own addresses, of every table.

    Links are read last, so that each has a name here, or is gone, and its routes with it: other servers on
    the host make and remove links at any time.
    """
    with _netlink() as netlink:
        found = [each for each in netlink.get_routes(family=AF_INET) if each["type"] in {_UNICAST, _LOCAL}]
        names: dict[int | None, str] = {
            link["index"]: link.get_attr("IFLA_IFNAME") for link in netlink.get_links()
        }
    names[None] = ""  # a route over several links
    return [
        HostRoute(
            IPv4Network((route.get_attr("RTA_DST") or "0.0.0.0", route["dst_len"])),  # noqa: S104
            names[link],
        )
        for route in found
        if (link := route.get_attr("RTA_OIF")) in names
    ]


def forget_neighbours() -> None:
    """Remove all learned neighbour entries."""
    with _netlink() as netlink:
        for entry in netlink.get_neighbours(family=AF_INET):
            if not entry["state"] & _PERMANENT:
                with suppress(NetlinkError):  # expired meanwhile
                    netlink.neigh("del", dst=entry.get_attr("NDA_DST"), ifindex=entry["ifindex"])


def forget_connections() -> None:
    """Remove all tracked connections of this namespace."""
    with _translated(), Conntrack() as conntrack:
        conntrack.flush()


def forget_connections_of(address: IPv4Address) -> None:
    """Remove the tracked connections from and to one address, leaving the others (the kernel filters)."""
    with _translated(), Conntrack() as conntrack:
        for pattern in (NFCTAttrTuple(saddr=str(address)), NFCTAttrTuple(daddr=str(address))):
            for entry in list(conntrack.dump_entries(tuple_orig=pattern)):
                with suppress(NetlinkError):  # ended meanwhile
                    conntrack.delete(entry)
