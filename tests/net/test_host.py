"""What the host must offer, and what is said when it doesn't."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import HostNotReady, InvalidRequest, Overloaded, RuntimeFailure
from aenv.network import firewall, links
from aenv.network.base import NetworkPool, Slot
from aenv.network.fake import FakeSlotPool
from aenv.network.plan import HostRoute, SlotPlan
from tests.net.conftest import TEST_SLOTS, TEST_VETHS, MakePool
from tests.net.support import HOST_ADDRESS, TAG, Outside, ip

START = "import asyncio; from aenv.network.pool import SlotPool; asyncio.run(SlotPool('beef').start())"


FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


async def test_ranges_that_the_host_uses_are_refused(make_pool: MakePool, outside: Outside) -> None:
    pool = make_pool(slot_network=IPv4Network(f"{HOST_ADDRESS}/16", strict=False))
    with pytest.raises(HostNotReady, match=rf"already uses \S+ on {outside.link}.*choose other"):
        await pool.start()


async def test_missing_nft_is_named_with_its_package(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.setattr(firewall, "_SBIN", str(tmp_path))
        with pytest.raises(HostNotReady, match="nft is missing: apt-get install nftables"):
            await make_pool().start()


def test_missing_privileges_are_named() -> None:
    command = ["setpriv", "--bounding-set=-net_admin", sys.executable, "-c", START]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "HostNotReady: network slots need CAP_NET_ADMIN: run the server as root" in result.stderr


async def test_refused_rules_say_what_nft_said() -> None:
    with pytest.raises(HostNotReady, match=r"nft refused the firewall rules: .*syntax error"):
        firewall.load("nonsense")


async def test_forwarding_is_on_after_a_start(make_pool: MakePool) -> None:
    await asyncio.to_thread(FORWARDING.write_text, "0")
    await make_pool().start()
    assert await asyncio.to_thread(FORWARDING.read_text) == "1\n"


@pytest.mark.parametrize("tag", ["", "abc", "abcdef0", "ABCD", "wxyz", "ab-cd"])
def test_wrong_tags_are_refused(tag: str) -> None:
    with pytest.raises(InvalidRequest, match="4 to 6 hexadecimal"):
        SlotPlan(tag)


@pytest.mark.parametrize(
    ("slots", "veths", "reason"),
    [
        ("10.1.0.0/16", "10.1.2.0/24", "overlap"),
        ("169.254.0.0/24", "10.1.2.0/24", "overlap"),
        ("10.1.0.0/31", "10.2.0.0/24", "too small"),
        ("10.1.0.0/24", "10.2.0.0/31", "too small"),
    ],
)
def test_unusable_ranges_are_refused(slots: str, veths: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        SlotPlan(TAG, IPv4Network(slots), IPv4Network(veths))


def test_names_fit_and_addresses_stay_in_their_ranges_for_every_index() -> None:
    plan = SlotPlan("abcdef")
    for index in (1, 2, 4000, plan.capacity):
        assert len(plan.veth(index)) <= 15
        assert plan.index_of_veth(plan.veth(index)) == index
        assert plan.index_of_namespace(plan.namespace(index)) == index
        assert plan.host_address(index) in plan.slot_network
        assert int(plan.veth_inside(index)) == int(plan.veth_host(index)) + 1
    assert plan.capacity >= 4000


@pytest.mark.parametrize("removed", [False, True])
def test_links_that_come_or_go_while_routes_are_read_are_no_conflict(
    removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another server on the host, which makes and removes slots."""
    read, name = links._netlink, "av0123x1"

    class Meanwhile:
        def __init__(self, netlink: Any) -> None:
            self.netlink = netlink

        def get_routes(self, **query: Any) -> list[Any]:
            ip("link", "add", name, "type", "veth", "peer", "name", "av0123y1")
            ip("address", "add", f"{TEST_VETHS[2]}/31", "dev", name)
            ip("link", "set", name, "up")
            return list(self.netlink.get_routes(**query))

        def get_links(self) -> list[Any]:
            if removed:
                ip("link", "del", name)
            return list(self.netlink.get_links())

    @contextmanager
    def netlink() -> Iterator[Meanwhile]:
        with read() as real:
            yield Meanwhile(real)

    with monkeypatch.context() as patch:
        patch.setattr(links, "_netlink", netlink)
        found = links.routes()
    assert any(route.interface == name for route in found) is not removed
    assert SlotPlan("abcdef", TEST_SLOTS, TEST_VETHS).conflict(found) is None
    if not removed:
        ip("link", "del", name)


def test_routes_of_other_servers_occupy_indexes_but_do_not_conflict() -> None:
    plan = SlotPlan("abcdef")
    routes = [
        HostRoute(IPv4Network("10.11.0.3/32"), "av0123x3"),
        HostRoute(IPv4Network("10.12.0.8/31"), "av0123x4"),
        HostRoute(IPv4Network("10.11.0.5/32"), plan.veth(5)),
        HostRoute(IPv4Network("0.0.0.0/0"), "eth0"),
        HostRoute(IPv4Network("0.0.0.0/1"), "tun0"),
        HostRoute(IPv4Network("192.0.2.0/24"), "eth0"),
    ]
    assert plan.conflict(routes) is None
    assert plan.occupied(routes) == {3, 4}
    foreign = HostRoute(IPv4Network("10.0.0.0/8"), "wg0")
    assert plan.conflict([*routes, foreign]) == foreign


async def test_the_fake_behaves_like_a_pool() -> None:
    fake = FakeSlotPool(limit=3)
    pool: NetworkPool = fake
    await pool.start(keep=[fake.slot(2)])
    first, third = await pool.acquire(), await pool.acquire()
    assert [first.index, third.index] == [1, 3]
    assert first.host_address != third.host_address
    assert all(IPv4Address(slot.host_address).is_loopback for slot in (first, third))
    with pytest.raises(Overloaded):
        await pool.acquire()
    os.close(pool.open_tap(first))
    await pool.release(first)
    with pytest.raises(RuntimeFailure):
        pool.open_tap(first)
    with pytest.raises(RuntimeFailure):
        await pool.adopt(first)
    second: Slot = await pool.acquire()
    assert second == first
    await pool.close()
