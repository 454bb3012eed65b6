"""The life of slots: made, handed out, wiped, removed, and nothing lost on the way."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyroute2 import Conntrack

from aenv.errors import HostNotReady, Overloaded, RuntimeFailure, ShuttingDown
from aenv.network import links, namespaces
from aenv.network import pool as pools
from aenv.network.base import GUEST_ADDRESS, NetworkPool, Slot
from aenv.network.builder import SlotBuilder
from tests.net.conftest import TEST_SLOTS, TEST_VETHS, MakeGuest, MakePool
from tests.net.support import OTHER_TAG, OUTSIDE_ADDRESS, TAG, Outside, host_state, ip, udp

CRASH = """
import asyncio, ipaddress, os, sys
from aenv.network.pool import SlotPool

async def main():
    slots, veths = map(ipaddress.IPv4Network, sys.argv[2:])
    pool = SlotPool(sys.argv[1], prepared=3, slot_network=slots, veth_network=veths)
    await pool.start()
    for _ in range(4):
        await pool.acquire()
    os._exit(9)

asyncio.run(main())
"""


def crash_a_server() -> None:
    """Leave four slots in use, and some prepared, as a killed server does."""
    command = [sys.executable, "-c", CRASH, TAG, str(TEST_SLOTS), str(TEST_VETHS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == 9


async def until(condition: object) -> None:
    """Poll a condition for at most five seconds."""
    assert callable(condition)
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def current_namespace() -> Path:
    return Path("/proc/thread-self/ns/net").readlink()


async def tracked(address: str, namespace: str | None = None) -> list[object]:
    """Connections from and to an address, on the host or in a namespace."""
    if namespace is None:
        return await asyncio.to_thread(_tracked, address)
    return await asyncio.to_thread(namespaces.run_inside, namespace, lambda: _tracked(address))


def _tracked(address: str) -> list[object]:
    with Conntrack() as conntrack:
        return [
            entry
            for entry in conntrack.dump_entries()
            if address in {entry.tuple_orig.saddr, entry.tuple_orig.daddr}
        ]


async def test_a_prepared_slot_is_taken_within_two_milliseconds(make_pool: MakePool) -> None:
    pool = make_pool(prepared=4)
    await pool.start()
    await until(lambda: len(pool._idle) == 4)
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        await pool.acquire()
        times.append(time.perf_counter() - begin)
    assert sorted(times)[2] < 0.002


async def test_slots_are_made_ahead_again_after_they_are_taken(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_REST", 0.1)
    pool = make_pool(prepared=2)
    await pool.start()
    taken = [await pool.acquire() for _ in range(5)]
    assert len({slot.host_address for slot in taken}) == 5
    await until(lambda: len(pool._idle) == 2)


async def test_more_slots_than_the_limit_are_refused(make_pool: MakePool) -> None:
    pool = make_pool(limit=2)
    await pool.start()
    first, _ = [await pool.acquire() for _ in range(2)]
    with pytest.raises(Overloaded, match="all 2 network slots"):
        await pool.acquire()
    await pool.release(first)
    assert await pool.acquire() == first


async def test_fifty_cycles_leave_the_host_as_it_was(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    await pool.release(await pool.acquire())
    before = host_state()
    for _ in range(50):
        slot = await pool.acquire()
        os.close(await asyncio.to_thread(pool.open_tap, slot))
        await pool.release(slot)
    after = host_state()
    assert after == before


async def test_slots_are_made_ahead_when_no_more_are_taken(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took the others has the CPU for itself meanwhile, and who finds none isn't kept waiting."""
    monkeypatch.setattr(pools, "_REST", 3600.0)
    pool = make_pool(prepared=2)
    await pool.start()
    assert len(pool._idle) == 1  # `start` makes one
    taken = [await pool.acquire() for _ in range(4)]
    assert len({slot.index for slot in taken}) == 4
    await until(lambda: not pool._wanted.is_set())
    assert not pool._idle
    monkeypatch.setattr(pools, "_REST", 0.0)
    await pool.release(taken.pop())
    await until(lambda: len(pool._idle) == 2)


async def test_a_slot_made_while_another_comes_back_is_not_one_too_many(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_REST", 0.0)
    pool = make_pool(prepared=2, kept=None)
    await pool.start()
    await until(lambda: len(pool._idle) == 2)
    slots = [await pool.acquire() for _ in range(2)]
    await until(pool._thread._work_queue.empty)  # the next one is being made
    await asyncio.gather(*map(pool.release, slots))
    await until(lambda: not pool._wanted.is_set())
    await asyncio.sleep(0.3)
    assert len(pool._idle) == 2
    assert len([name for name in namespaces.names() if f"-{TAG}-" in name]) == 2


async def test_a_pool_that_keeps_none_gives_slots_all_the_same(make_pool: MakePool) -> None:
    pool = make_pool(prepared=0, kept=None)
    await pool.start()
    async with asyncio.timeout(5):
        slot = await pool.acquire()
    await pool.release(slot)
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == []


async def test_returned_slots_beyond_what_is_kept_are_removed(make_pool: MakePool) -> None:
    pool = make_pool(kept=1)
    await pool.start()
    slots = [await pool.acquire() for _ in range(3)]
    await asyncio.gather(*(pool.release(slot) for slot in slots))
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == [slots[0].namespace]


async def test_a_released_slot_holds_nothing_of_its_tenant(
    make_pool: MakePool, make_guest: MakeGuest, outside: Outside
) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    guest = make_guest(pool, slot)
    with outside.udp(port=7001) as server, guest.udp(GUEST_ADDRESS, 7002) as client, udp() as host:
        client.sendto(b"out", (OUTSIDE_ADDRESS, 7001))
        assert server.recv(100) == b"out"
        host.sendto(b"in", (slot.host_address, 7002))
        assert client.recv(100) == b"in"
    assert await tracked(slot.host_address)
    assert await tracked(slot.host_address, slot.namespace)
    guest.close()
    await pool.release(slot)
    assert not await tracked(slot.host_address)
    assert not await tracked(slot.host_address, slot.namespace)
    neighbours = ip("-n", slot.namespace, "neigh", "show", "nud", "all").splitlines()
    assert [line for line in neighbours if "PERMANENT" not in line and "NOARP" not in line] == []
    assert any(line.startswith(GUEST_ADDRESS) for line in neighbours)


async def test_connections_of_others_survive_a_release(make_pool: MakePool, make_guest: MakeGuest) -> None:
    pool = make_pool()
    await pool.start()
    leaving, staying = await pool.acquire(), await pool.acquire()
    guest = make_guest(pool, staying)
    with guest.udp(GUEST_ADDRESS, 7003) as server, udp() as host:
        host.sendto(b"in", (staying.host_address, 7003))
        assert server.recv(100) == b"in"
    await pool.release(leaving)
    assert await tracked(staying.host_address)


async def test_a_slot_whose_tap_is_still_held_is_not_used_again(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    tap = pool.open_tap(slot)
    await pool.release(slot)
    assert slot.namespace not in namespaces.names()
    again = await pool.acquire()
    os.close(tap)
    os.close(pool.open_tap(again))


async def test_a_slot_with_missing_parts_is_not_used_again(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    ip("link", "del", f"av{TAG}x{slot.index}")
    await pool.release(slot)
    assert slot.namespace not in namespaces.names()


async def test_releasing_twice_is_harmless(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    await asyncio.gather(pool.release(slot), pool.release(slot))
    await pool.release(slot)
    assert await pool.acquire() == slot
    assert await pool.acquire() != slot


async def test_a_cancelled_acquire_loses_no_slot(make_pool: MakePool) -> None:
    pool = make_pool(limit=1)
    await pool.start()
    for steps in range(12):
        attempt = asyncio.create_task(pool.acquire())
        for _ in range(steps):
            await asyncio.sleep(0.002)
        attempt.cancel()
        (outcome,) = await asyncio.gather(attempt, return_exceptions=True)
        if isinstance(outcome, Slot):
            await pool.release(outcome)
    assert (await asyncio.wait_for(pool.acquire(), 5)).index == 1


async def test_a_cancelled_release_still_wipes(make_pool: MakePool) -> None:
    pool = make_pool(limit=1)
    await pool.start()
    slot = await pool.acquire()
    release = asyncio.create_task(pool.release(slot))
    await asyncio.sleep(0)
    release.cancel()
    await asyncio.gather(release, return_exceptions=True)
    assert await asyncio.wait_for(pool.acquire(), 5) == slot


async def test_who_waits_when_the_pool_closes_is_told(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, Slot | ShuttingDown) for outcome in outcomes)
    assert any(isinstance(outcome, ShuttingDown) for outcome in outcomes)
    with pytest.raises(ShuttingDown):
        await pool.acquire()


async def test_a_slot_that_cannot_be_finished_is_removed_in_whole(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool()
    await pool.start()
    before = host_state()

    def refuse(**_: object) -> None:
        raise OSError(12, "no memory for links")

    with monkeypatch.context() as patch:
        patch.setattr(links, "connect_host", refuse)
        with pytest.raises(HostNotReady, match="no memory for links"):
            await pool.acquire()
        assert host_state() == before
    assert (await asyncio.wait_for(pool.acquire(), 5)).index == 1


async def test_a_start_removes_what_a_crash_left_but_keeps_what_is_named(make_pool: MakePool) -> None:
    crash_a_server()
    pool = make_pool()
    await pool.start(keep=[pool._plan.slot(2), pool._plan.slot(77)])
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == [f"aenv-{TAG}-2"]
    kept = pool._plan.slot(2)
    await pool.adopt(kept)
    os.close(pool.open_tap(kept))
    with pytest.raises(RuntimeFailure, match="did not survive"):
        await pool.adopt(pool._plan.slot(77))
    assert [(await pool.acquire()).index for _ in range(2)] == [1, 3]
    await pool.release(kept)
    assert await pool.acquire() == kept


async def test_a_slot_that_is_left_survives_its_pool(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    left, other = await pool.acquire(), await pool.acquire()
    await pool.leave(left)
    await pool.close()
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == [left.namespace]
    pool = make_pool()
    await pool.start(keep=[left])
    await pool.adopt(left)
    assert (await pool.acquire()) == other
    await pool.close()
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == []


async def test_a_start_that_fails_keeps_the_slots_of_running_machines(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_a_server()
    with monkeypatch.context() as patch:

        def refuse(self: SlotBuilder) -> frozenset[int]:
            raise OSError(5, "broken")

        patch.setattr(SlotBuilder, "occupied", refuse)
        pool = make_pool()
        with pytest.raises(HostNotReady, match="broken"):
            await pool.start(keep=[pool._plan.slot(1)])
    assert [name for name in namespaces.names() if f"-{TAG}-" in name] == [f"aenv-{TAG}-1"]
    await make_pool().start()


async def test_two_servers_share_a_host_and_its_addresses(make_pool: MakePool) -> None:
    one, other = make_pool(), make_pool(OTHER_TAG)
    await one.start()
    await other.start()
    slots = [await pool.acquire() for _ in range(3) for pool in (one, other)]
    assert len({slot.host_address for slot in slots}) == 6
    await one.close()
    assert sorted(name for name in namespaces.names() if f"-{OTHER_TAG}-" in name) == sorted(
        slot.namespace for slot in slots[1::2]
    )
    os.close(other.open_tap(slots[1]))


async def test_a_tap_opens_without_moving_the_caller(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    slot = await pool.acquire()
    before = current_namespace()
    tap = pool.open_tap(slot)
    assert current_namespace() == before
    assert fcntl.fcntl(tap, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(RuntimeFailure, match="another process uses it"):
        pool.open_tap(slot)
    os.close(tap)


async def test_a_tap_of_a_slot_that_is_gone_is_refused(make_pool: MakePool) -> None:
    pool = make_pool()
    await pool.start()
    with pytest.raises(RuntimeFailure, match="cannot open the network device"):
        pool.open_tap(pool._plan.slot(9))


async def test_many_slots_close_quickly(make_pool: MakePool) -> None:
    pool: NetworkPool = make_pool(prepared=40)
    await pool.start()
    await until(lambda: len(pool._idle) == 40)  # type: ignore[attr-defined]
    begin = time.monotonic()
    await pool.close()
    assert time.monotonic() - begin < 3
