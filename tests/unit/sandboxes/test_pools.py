"""Pools follow the demand of late, between a floor and the most that is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient
from aenv.sandboxes import activity, pools
from aenv.sandboxes.demand import MEMORY_HALF_LIFE, Demand
from aenv.sandboxes.pools import FLOOR, Pool
from tests.unit.sandboxes.conftest import Rig, eventually
from tests.unit.sandboxes.spare import Thing, end, make


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools wait for nobody."""
    monkeypatch.setattr(activity, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.02)


def pool_of(most: int, clock: Clock) -> Pool[Thing]:
    quiet = activity.Activity()
    return Pool(
        "test", most, 2, make=make, dispose=end, ended=lambda it: it.ended, activity=quiet, clock=clock
    )


@asynccontextmanager
async def kept(pool: Pool[Thing]) -> AsyncIterator[None]:
    """The pool is filled and tidied in the block; then everything in it has ended."""
    running = asyncio.ensure_future(pool.run())
    try:
        yield
        ready = pool.ready()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert all(thing.ended for thing in ready)
    assert pool.count() == 0


async def holds(pool: Pool[Thing], key: str, count: int) -> None:
    async def it_does() -> bool:
        return pool.count(key) == count

    await eventually(it_does, 10)


def test_a_burst_is_expected_again_until_it_fades() -> None:
    clock = Clock()
    demand = Demand(clock)
    assert demand.expected == 0
    for _ in range(10):
        demand.note()
        clock.now += 0.05
    assert demand.expected in (9, 10)
    clock.now += MEMORY_HALF_LIFE
    assert demand.expected in (4, 5)
    clock.now += 10 * MEMORY_HALF_LIFE
    assert demand.expected == 0


def test_what_is_asked_for_now_and_then_needs_few() -> None:
    clock = Clock()
    demand = Demand(clock)
    for _ in range(1000):
        clock.now += 30
        demand.note()
    assert demand.expected == 1


async def test_a_pool_grows_with_a_burst_and_shrinks_in_quiet() -> None:
    clock = Clock()
    pool = pool_of(6, clock)
    async with kept(pool):
        pool.want("a")
        await holds(pool, "a", FLOOR)
        taken = [pool.take("a") for _ in range(4)]
        assert (pool.hits, pool.misses) == (2, 2)
        assert [thing is None for thing in taken] == [False, False, True, True]
        await holds(pool, "a", 4)
        for _ in range(20):
            pool.take("a")
        await holds(pool, "a", 6)
        given_up = pool.ready()
        clock.now += 20 * MEMORY_HALF_LIFE
        await holds(pool, "a", FLOOR)

        async def ended() -> bool:
            return [thing.ended for thing in given_up] == [True] * 4 + [False] * 2

        await eventually(ended, 10)


async def test_the_kinds_asked_for_last_are_kept() -> None:
    pool = pool_of(3, Clock())
    async with kept(pool):
        for key in "abc":
            pool.want(key)
        await holds(pool, "c", FLOOR)
        await holds(pool, "b", FLOOR)
        assert pool.count("a") == 0
        assert pool.wanted() == 2 * FLOOR


async def test_nothing_is_made_without_room() -> None:
    pool = pool_of(3, Clock())
    room = 1

    async def is_room() -> bool:
        return pool.count() < room

    pool.may_make = is_room
    async with kept(pool):
        pool.want("a")
        await holds(pool, "a", 1)
        room = 2
        await holds(pool, "a", 2)


async def test_what_died_is_not_handed_out() -> None:
    pool = pool_of(3, Clock())
    async with kept(pool):
        pool.want("a")
        await holds(pool, "a", FLOOR)
        dead, alive = pool.ready()
        dead.ended = True
        assert pool.take("a") is alive


async def test_what_fails_and_is_not_wanted_any_more_is_no_trouble() -> None:
    begun, forgotten = asyncio.Event(), asyncio.Event()

    async def fails(key: str) -> Thing:
        if key == "next":
            return await make(key)
        begun.set()
        await forgotten.wait()
        raise RuntimeFailure("it isn't recorded")

    pool = Pool(
        "test", 1, 2, make=fails, dispose=end, ended=lambda it: it.ended, activity=activity.Activity()
    )
    with structlog.testing.capture_logs() as entries:
        async with kept(pool):
            pool.want("deleted")
            await begun.wait()
            pool.forget("deleted")
            forgotten.set()
            pool.want("next")
            await holds(pool, "next", 1)
    assert {entry["log_level"] for entry in entries} == {"debug"}


async def test_a_pool_of_size_zero_keeps_and_counts_nothing() -> None:
    pool = pool_of(0, Clock())
    async with kept(pool):
        assert pool.take("a") is None
        assert (pool.count(), pool.wanted(), pool.hits, pool.misses) == (0, 0, 0, 0)


async def test_creates_make_the_hot_pool_grow(rig: Rig) -> None:
    await rig.pools_are_filled()
    for sandbox in [await rig.create() for _ in range(5)]:
        await rig.node.sandboxes.kill(sandbox.id)
    hot = rig.node.starter.hot
    if rig.settings.hot_vms:
        assert hot.hits >= FLOOR
        assert hot.hits + hot.misses == 5
        assert hot.wanted() in (4, 5)

        async def grown() -> bool:
            return hot.count() == hot.wanted()

        await eventually(grown, 30)
    else:
        assert hot.count() == hot.wanted() == 0


async def test_a_snapshot_deleted_while_spares_are_made_of_it_is_no_trouble(rig: Rig) -> None:
    sandbox = await rig.create()
    snapshot = await rig.node.sandboxes.snapshot(sandbox.id)
    await rig.node.sandboxes.kill(sandbox.id)
    await rig.pools_are_filled()
    hot, before = rig.node.starter.hot, len(rig.network.in_use)

    async def begun() -> bool:
        return len(rig.network.in_use) > before or not rig.settings.hot_vms

    async def ended() -> bool:
        return len(rig.network.in_use) <= before  # the slot of what was killed may have been counted

    with structlog.testing.capture_logs() as entries:
        with rig.runtime.hold("spawn"):
            hot.want(snapshot.build.capture_id)
            await eventually(begun, 20)
            await rig.node.templates.delete(snapshot.id)
        await eventually(ended, 20)
    assert not [entry for entry in entries if entry["log_level"] in ("warning", "error")]


async def test_spares_are_made_in_the_background_and_ready_in_the_foreground(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = rig.runtime.background
    seen: list[set[str]] = []
    warm = EnvdClient.warm

    async def watched(self: EnvdClient, *arguments: Any, **options: Any) -> None:
        seen.append(set(background))
        await warm(self, *arguments, **options)

    monkeypatch.setattr(EnvdClient, "warm", watched)
    await rig.pools_are_filled()
    await rig.create()
    await rig.pools_are_filled()
    if rig.settings.hot_vms:
        assert seen
        assert all(seen)

    async def none() -> bool:
        return not background

    await eventually(none, 10)
