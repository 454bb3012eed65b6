"""Makes, wipes and removes slots. Everything here blocks, and belongs to one thread."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import structlog

from aenv.errors import HostNotReady, RuntimeFailure
from aenv.network import firewall, links, namespaces, taps
from aenv.network.base import TAP_NAME, Slot
from aenv.network.firewall import UPLINK
from aenv.network.plan import SlotPlan

log = structlog.get_logger(__name__)

_SYSCTL: Final = Path("/proc/sys/net")
_CAP_NET_ADMIN: Final = 12  # linux/capability.h
_CAP_SYS_ADMIN: Final = 21

_NAMESPACE_SYSCTLS: Final = (
    # ip_forward comes first: writing it resets the redirect settings.
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
)


class SlotBuilder:
    """The slots of one server on this host."""

    def __init__(self, plan: SlotPlan, denied: Iterable[IPv4Network]) -> None:
        self._plan = plan
        self._denied = tuple(denied)

    def prepare_host(self) -> None:
        """Check the host, turn forwarding on and load the host's rules.

        `net.ipv4.ip_forward` is never turned off again: by then others may rely on it.
        Raises HostNotReady if something is missing or the ranges are in use.
        """
        _require_privileges()
        firewall.nft_path()
        if not taps.TUN_DEVICE.exists():
            raise HostNotReady(
                f"{taps.TUN_DEVICE} is missing: run `modprobe tun`, or pass it to the container"
            )
        namespaces.prepare_folder()
        conflict = self._plan.conflict(links.routes())
        if conflict is not None:
            where = f" on {conflict.interface}" if conflict.interface else ""
            raise HostNotReady(
                f"this host already uses {conflict.destination}{where}, which overlaps the sandbox networks "
                f"{self._plan.slot_network} and {self._plan.veth_network}: choose other private ranges"
            )
        firewall.load(firewall.host_rules(self._plan, self._denied))
        forward = _SYSCTL / "ipv4/ip_forward"
        if forward.read_text().strip() == "0":
            _write_sysctl(forward, "1")
            log.info("ip_forward_enabled", reason="guests reach the outside through this host")

    def occupied(self) -> frozenset[int]:
        """Indexes that other servers on this host use now."""
        return self._plan.occupied(links.routes())

    def create(self, index: int) -> Slot:
        """Make a slot. Raises FileExistsError if another server has its address, HostNotReady for the rest.

        Whatever was made before a failure is removed.
        """
        plan = self._plan

        def inside(host: int) -> None:
            for name, value in _NAMESPACE_SYSCTLS:
                _write_sysctl(_SYSCTL / name, value)
            taps.create_persistent(TAP_NAME)
            links.connect_namespace(
                uplink=UPLINK,
                tap=TAP_NAME,
                veth=plan.veth(index),
                host=host,
                inside=plan.veth_inside(index),
                gateway=plan.veth_host(index),
            )
            firewall.load(firewall.slot_rules(plan, index))

        try:
            namespaces.create_and_run(plan.namespace(index), inside)
            _write_sysctl(_SYSCTL / f"ipv6/conf/{plan.veth(index)}/disable_ipv6", "1")
            links.connect_host(
                veth=plan.veth(index),
                group=plan.link_group,
                address=plan.veth_host(index),
                inside=plan.veth_inside(index),
                host_address=plan.host_address(index),
            )
        except BaseException as error:
            self._remove([index])
            if isinstance(error, OSError) and not isinstance(error, FileExistsError):
                raise HostNotReady(f"cannot make a network slot: {error}") from error
            raise
        return plan.slot(index)

    def wipe(self, slot: Slot) -> bool:
        """Remove what a tenant left: tracked connections here and on the host, neighbours, queued packets.

        False if the slot can't be used again: its VMM still holds the tap, or parts are missing.
        """
        try:
            socket.if_nametoindex(self._plan.veth(slot.index))
            namespaces.run_inside(slot.namespace, _wipe_inside)
            links.forget_connections_of(self._plan.host_address(slot.index))
        except OSError as error:
            log.warning("slot_not_reusable", namespace=slot.namespace, reason=str(error))
            return False
        return True

    def destroy(self, slot: Slot) -> None:
        """Remove a slot with all its parts."""
        self._remove([slot.index])
        links.forget_connections_of(self._plan.host_address(slot.index))

    def existing(self) -> frozenset[int]:
        """Indexes of all slots of our tag of which any part exists."""
        found = [self._plan.index_of_namespace(name) for name in namespaces.names()]
        found += [self._plan.index_of_veth(name) for _, name in socket.if_nameindex()]
        return frozenset(index for index in found if index is not None)

    def remove_all(self, *, keep: Collection[int] = ()) -> None:
        """Remove every slot of our tag except `keep`, also those of an earlier run."""
        self._remove(sorted(self.existing() - set(keep)))

    def leave_host(self) -> None:
        """Undo `prepare_host`, but for `ip_forward`."""
        firewall.remove_host_rules(self._plan)

    def _remove(self, indexes: Collection[int]) -> None:
        # The host's end first: with it go the peer, the routes and thereby all traffic, at once, even if a
        # VMM that still runs keeps the namespace alive.
        if len(indexes) == 1:
            links.delete_link(self._plan.veth(next(iter(indexes))))
        else:
            links.delete_links(map(self._plan.veth, indexes), self._plan.link_group)
        for index in indexes:
            namespaces.remove(self._plan.namespace(index))


def open_tap(slot: Slot) -> int:
    """Open a slot's tap from any thread; see NetworkPool.open_tap."""
    try:
        return namespaces.run_inside(slot.namespace, lambda: taps.attach(slot.tap))
    except OSError as error:
        reason = "another process uses it" if error.errno == errno.EBUSY else str(error)
        raise RuntimeFailure(f"cannot open the network device of slot {slot.namespace}: {reason}") from error


def _wipe_inside() -> None:
    # Attaching fails with EBUSY while a VMM is attached; detaching drops the packets queued for the guest.
    os.close(taps.attach(TAP_NAME))
    links.forget_connections()
    links.forget_neighbours()


def _write_sysctl(path: Path, value: str) -> None:
    if path.is_relative_to(_SYSCTL / "ipv6") and not path.exists():
        return  # a kernel without IPv6
    path.write_text(value)


def _require_privileges() -> None:
    status = Path("/proc/thread-self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    for number, name in ((_CAP_NET_ADMIN, "CAP_NET_ADMIN"), (_CAP_SYS_ADMIN, "CAP_SYS_ADMIN")):
        if not effective >> number & 1:
            raise HostNotReady(f"network slots need {name}: run the server as root")
