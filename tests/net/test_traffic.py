"""Which packets reach whom."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from aenv.network import namespaces
from aenv.network.base import GUEST_ADDRESS, Slot
from aenv.network.firewall import MAX_CONNECTIONS
from aenv.network.pool import SlotPool
from tests.net.conftest import MakeGuest, MakePool
from tests.net.support import (
    HOST_ADDRESS,
    OTHER_TAG,
    OUTSIDE_ADDRESS,
    TAG,
    Guest,
    Outside,
    ip,
    nft,
    nothing_arrived,
    udp,
)


async def start(pool: SlotPool, make_guest: MakeGuest) -> tuple[Slot, Guest]:
    await pool.start()
    return await join(pool, make_guest)


async def join(pool: SlotPool, make_guest: MakeGuest) -> tuple[Slot, Guest]:
    slot = await pool.acquire()
    return slot, make_guest(pool, slot)


def disable_reverse_path_filter(slot: Slot) -> None:
    """Turn the reverse path filter of a slot's namespace off."""

    def write() -> None:
        for interface in ("all", "tap0"):
            Path(f"/proc/sys/net/ipv4/conf/{interface}/rp_filter").write_text("0")

    namespaces.run_inside(slot.namespace, write)


def reach_outside(guest: Guest, outside: Outside) -> str:
    """Send a datagram out and back; returns the source that the outside saw.

    Frames are carried in order, so what the guest sent before has been dealt with by then.
    """
    with outside.udp(port=7000) as server, guest.udp() as client:
        client.sendto(b"ask", (OUTSIDE_ADDRESS, 7000))
        data, source = server.recvfrom(100)
        assert data == b"ask"
        server.sendto(b"answer", source)
        assert client.recv(100) == b"answer"
        return str(source[0])


async def test_the_host_reaches_the_guest_at_its_host_address(
    make_pool: MakePool, make_guest: MakeGuest
) -> None:
    slot, guest = await start(make_pool(), make_guest)
    with guest.udp(GUEST_ADDRESS, 4000) as server, udp() as client:
        client.sendto(b"hello", (slot.host_address, 4000))
        data, source = server.recvfrom(100)
        assert data == b"hello"
        server.sendto(b"welcome", source)
        assert client.recvfrom(100) == (b"welcome", (slot.host_address, 4000))


async def test_the_guest_reaches_the_outside_as_the_host(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    _, guest = await start(make_pool(), make_guest)
    assert reach_outside(guest, outside) == HOST_ADDRESS


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_streams_pass_whole_with_offloads(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside, direction: str
) -> None:
    slot, guest = await start(make_pool(), make_guest)
    payload = bytes(range(256)) * 16_000
    place, client, address = (
        (guest, socket.socket(), slot.host_address)
        if direction == "in"
        else (outside, guest.tcp(), OUTSIDE_ADDRESS)
    )
    with place.tcp() as listener, client:
        listener.settimeout(10)
        client.settimeout(10)
        listener.bind(("", 4001))
        listener.listen()

        def echo() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                while data := connection.recv(65536):
                    connection.sendall(data)

        def send() -> None:
            client.sendall(payload)
            client.shutdown(socket.SHUT_WR)

        def exchange() -> bytes:
            client.connect((address, 4001))
            sender = threading.Thread(target=send)
            sender.start()
            received = bytearray()
            while data := client.recv(65536):
                received += data
            sender.join()
            return bytes(received)

        _, received = await asyncio.gather(asyncio.to_thread(echo), asyncio.to_thread(exchange))
    assert received == payload


async def test_the_guest_reaches_no_address_of_the_host(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    slot, guest = await start(make_pool(), make_guest)
    link = next(line for line in ip("-4", "-o", "addr").splitlines() if "10.212." in line)
    veth_address = link.split()[3].partition("/")[0]
    with udp(port=5000) as host, guest.udp() as client:
        for address in (HOST_ADDRESS, veth_address, "169.254.0.22", slot.host_address):
            client.sendto(b"knock", (address, 5000))
        reach_outside(guest, outside)
        assert nothing_arrived(host)


async def test_metadata_addresses_are_not_reached(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    outside.ip("addr", "add", "169.254.169.254/32", "dev", "lo")
    ip("route", "add", "169.254.169.254/32", "via", OUTSIDE_ADDRESS)
    _, guest = await start(make_pool(), make_guest)
    with outside.udp(port=5001) as metadata, guest.udp() as client, udp() as host:
        client.sendto(b"token", ("169.254.169.254", 5001))
        reach_outside(guest, outside)
        assert nothing_arrived(metadata)
        metadata.settimeout(5)
        host.sendto(b"control", ("169.254.169.254", 5001))
        assert metadata.recv(100) == b"control"


@pytest.mark.parametrize("second_tag", ["same pool", OTHER_TAG], ids=["same pool", "another pool"])
async def test_guests_do_not_reach_each_other(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside, second_tag: str
) -> None:
    pool = make_pool()
    _, attacker = await start(pool, make_guest)
    if second_tag == "same pool":
        slot, victim = await join(pool, make_guest)
    else:
        slot, victim = await start(make_pool(second_tag), make_guest)
    with victim.udp(port=5002) as server, attacker.udp() as client, udp() as host:
        client.sendto(b"attack", (slot.host_address, 5002))
        reach_outside(attacker, outside)
        assert nothing_arrived(server)
        server.settimeout(5)
        host.sendto(b"control", (slot.host_address, 5002))
        assert server.recv(100) == b"control"


@pytest.mark.parametrize("alone", ["the host's rules", "the slot's rules"])
async def test_the_outside_does_not_reach_a_guest(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside, alone: str
) -> None:
    slot, guest = await start(make_pool(), make_guest)
    if alone == "the slot's rules":
        nft("flush", "chain", "inet", f"aenv_{TAG}", "forward_to_slot")
    else:
        translate = f"iifname up0 ip daddr {slot.host_address} dnat to {GUEST_ADDRESS}"
        nft("add", "rule", "ip", "aenv", "prerouting", translate, namespace=slot.namespace)
    outside.ip("route", "add", "default", "via", HOST_ADDRESS)
    with guest.udp(port=5003) as server, outside.udp() as client, udp() as host:
        client.sendto(b"attack", (slot.host_address, 5003))
        host.sendto(b"control", (slot.host_address, 5003))
        assert server.recv(100) == b"control"
        assert nothing_arrived(server)


@pytest.mark.parametrize("alone", ["the host's rules", "the slot's rules"])
async def test_spoofed_sources_are_dropped(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside, alone: str
) -> None:
    pool = make_pool()
    slot, guest = await start(pool, make_guest)
    other = await pool.acquire()
    sources = ["198.51.100.7", other.host_address]
    if alone == "the slot's rules":
        nft("flush", "chain", "inet", f"aenv_{TAG}", "check_source")
        sources.append(slot.host_address)  # to the host this one is the slot itself
    else:
        nft("flush", "chain", "ip", "aenv", "source", namespace=slot.namespace)
        disable_reverse_path_filter(slot)
    reach_outside(guest, outside)  # so that no datagram below is lost only for want of the gateway's MAC
    with outside.udp(port=5004) as server:
        for source in sources:
            guest.ip("addr", "add", f"{source}/32", "dev", "lo")
            with guest.udp(source) as client:
                client.sendto(b"lie", (OUTSIDE_ADDRESS, 5004))
        reach_outside(guest, outside)
        assert nothing_arrived(server)


async def test_the_next_tenant_gets_no_answers_to_the_last_one(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    first = make_guest(pool, slot)
    with outside.udp(port=5005) as server:
        with first.udp(port=6000) as client:
            client.sendto(b"ask", (OUTSIDE_ADDRESS, 5005))
            _, source = server.recvfrom(100)
        first.close()
        await pool.release(slot)
        again, second = await join(pool, make_guest)
        assert again == slot
        with second.udp(port=6000) as client, udp() as host:
            server.sendto(b"late", source)
            host.sendto(b"control", (slot.host_address, 6000))
            assert client.recv(100) == b"control"
            assert nothing_arrived(client)


async def test_a_guest_can_not_fill_the_hosts_table_of_connections(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    slot, guest = await start(make_pool(), make_guest)

    def tracked() -> int:
        return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())

    before = tracked()
    with outside.udp(port=7000) as server, guest.udp() as first:
        first.sendto(b"first", (OUTSIDE_ADDRESS, 7000))
        _, source = server.recvfrom(100)
        server.sendto(b"answer", source)
        assert first.recv(100) == b"answer"
        with guest.udp() as many:
            for port in range(10_000, 10_000 + MAX_CONNECTIONS + 1000):
                many.sendto(b"x", (OUTSIDE_ADDRESS, port))
                if port % 100 == 0:  # frames are carried in order: wait, so that no queue overflows
                    first.sendto(b"more", (OUTSIDE_ADDRESS, 7000))
                    assert server.recv(100) == b"more"
        # The kernel counts in passing, on several CPUs: it may let a few more in.
        assert tracked() - before <= MAX_CONNECTIONS + 16
        assert namespaces.run_inside(slot.namespace, tracked) <= MAX_CONNECTIONS + 16
        with guest.udp() as another:
            another.sendto(b"one too many", (OUTSIDE_ADDRESS, 7000))
            first.sendto(b"again", (OUTSIDE_ADDRESS, 7000))
            assert server.recv(100) == b"again"
            assert nothing_arrived(server)
