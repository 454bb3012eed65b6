"""Spare machines keep within a memory budget and make way for what runs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from aenv import host
from aenv.errors import Overloaded
from aenv.host import HostMemory, MemoryUse
from aenv.node import Node
from aenv.runtimes.base import Capture, Layer
from aenv.sandboxes import costs, spares
from aenv.sandboxes.spares import FIRST_GUESS, MARGIN, MemoryPlan, Spares
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings
from tests.unit.sandboxes.spare import Thing, end

RESERVE = 100
GREAT = 1 << 40


class Shelf:
    """A pool that is nothing but a list."""

    hits = misses = 0

    def __init__(self, name: str, sizes: list[int]) -> None:
        self.name = name
        self.things = [Thing(name, size) for size in sizes]
        self.ended: list[Thing] = []

    def ready(self) -> list[Thing]:
        return list(self.things)

    def give_up(self) -> Coroutine[Any, Any, None] | None:
        if not self.things:
            return None
        self.ended.append(self.things.pop(0))
        return end(self.ended[-1])

    def count(self) -> int:
        return len(self.things)

    wanted = count


class Host:
    """A host whose memory is what it began with, less what the spares on the shelves hold."""

    def __init__(self, memory: int, *shelves: Shelf, budget: int = GREAT) -> None:
        self.memory = memory
        self.shelves = shelves
        self.spares = Spares(shelves, MemoryPlan(budget, RESERVE), self.left)

    def left(self) -> HostMemory:
        held = sum(thing.size for shelf in self.shelves for thing in shelf.things)
        return HostMemory(self.memory, self.memory - held)

    @property
    def sizes(self) -> list[list[int]]:
        return [[thing.size for thing in shelf.things] for shelf in self.shelves]


def shelves() -> tuple[Shelf, Shelf, Shelf]:
    return Shelf("stopped", [10, 20, 30]), Shelf("hot", [40, 50]), Shelf("bare", [5, 6])


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (161, [[10, 20, 30], [40, 50], [5, 6]]),
        (160, [[20, 30], [40, 50], [5, 6]]),
        (101, [[], [40, 50], [5, 6]]),
        (60, [[], [], [5, 6]]),
        (0, [[], [], []]),
    ],
)
async def test_over_the_budget_the_coldest_go_in_order(budget: int, left: list[list[int]]) -> None:
    machine = Host(GREAT, *shelves(), budget=budget)
    await machine.spares.trim()
    assert machine.sizes == left
    assert all(thing.ended for shelf in machine.shelves for thing in shelf.ended)
    given_up = {name: pool.given_up for name, pool in machine.spares.census().items()}
    assert given_up == {shelf.name: len(shelf.ended) for shelf in machine.shelves}


async def test_spares_leave_more_than_the_reserve() -> None:
    machine = Host(161 + MARGIN * RESERVE - 25, *shelves())
    await machine.spares.trim()
    assert machine.sizes == [[30], [40, 50], [5, 6]]


async def test_a_start_beats_spares() -> None:
    machine = Host(161 + RESERVE, *shelves())
    async with machine.spares.room(55):
        assert machine.sizes == [[], [40, 50], [5, 6]]
        async with machine.spares.room(55):  # the first has not taken what it was promised
            assert machine.sizes == [[], [], [5, 6]]
    async with machine.spares.room(55):
        assert machine.sizes == [[], [], [5, 6]]


async def test_without_room_a_start_is_refused() -> None:
    machine = Host(161 + RESERVE, *shelves())
    with pytest.raises(Overloaded, match="0 MiB of memory left") as error:
        async with machine.spares.room(200):
            raise AssertionError
    assert error.value.retry_after is not None
    assert machine.sizes == [[], [], []]
    async with machine.spares.room(161):  # what was refused is promised no more
        pass


async def test_more_is_made_only_where_it_may_stay() -> None:
    machine = Host(GREAT, Shelf("stopped", [500]), Shelf("hot", [30, 50]), Shelf("bare", []), budget=120)
    assert await machine.spares.may_make("hot")  # at the cost of what is stopped
    assert not await machine.spares.may_make("bare")  # nothing to measure: it is taken to be large
    machine.shelves[1].things.append(Thing("hot", 30))
    assert not await machine.spares.may_make("hot")
    least = FIRST_GUESS + MARGIN * RESERVE  # all others may go for it
    assert await Host(least, *machine.shelves).spares.may_make("bare")
    assert not await Host(least - 1, *machine.shelves).spares.may_make("bare")


async def test_a_spare_that_does_not_end_keeps_nobody_waiting() -> None:
    class Stuck(Shelf):
        def give_up(self) -> Coroutine[Any, Any, None] | None:
            ending = super().give_up()
            if ending is None:
                return None
            ending.close()
            return self._fail()

        async def _fail(self) -> None:
            raise OSError("it can't be ended")

    machine = Host(GREAT, Stuck("stopped", [10]), Shelf("hot", [10]), budget=0)
    await machine.spares.trim()
    assert machine.sizes == [[], []]


async def test_a_node_gives_up_stopped_machines_and_resumes_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "WATCH_SECONDS", 0.02)
    node = Node(fake_settings(tmp_path, hot_vms=0, bare_vms=0, spare_memory_mib=100))
    await node.start()
    rig = Rig(node, fake_settings(tmp_path))
    try:
        rig.runtime.memory = MemoryUse(private=40 << 20, shared=1 << 30)
        ids = []
        for number in range(4):
            sandbox = await rig.create()
            await rig.put(sandbox.id, "value", number)
            await node.sandboxes.pause(sandbox.id)
            ids.append(sandbox.id)

        async def two_are_left() -> bool:
            return list(node.starter.stopped._machines) == ids[2:]

        await eventually(two_are_left, 10)
        census = await node.sandboxes.census()
        assert census.pools["stopped"].given_up == 2
        assert census.memory["stopped"] == MemoryUse(80 << 20, 2 << 30)
        for number, sandbox_id in enumerate(ids):
            await node.sandboxes.resume(sandbox_id, 60)
            assert await rig.read(sandbox_id, "value") == number
        assert (node.starter.stopped.hits, node.starter.stopped.misses) == (2, 2)
    finally:
        await node.stop()


async def test_a_node_without_memory_refuses_to_start_and_keeps_what_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(fake_settings(tmp_path, reserved_memory_mib=1000))
    await node.start()
    try:
        rig = Rig(node, fake_settings(tmp_path))
        sandbox = await rig.create()
        await node.sandboxes.pause(sandbox.id)
        monkeypatch.setattr(node.starter.spares, "_memory", lambda: HostMemory(4000 << 20, 1100 << 20))
        await node.starter.spares.trim()
        assert not rig.runtime.instances
        with pytest.raises(Overloaded, match="1100 MiB of memory left, of which 1000 are kept free"):
            await rig.create()
        with pytest.raises(Overloaded):
            await node.sandboxes.resume(sandbox.id, 60)
        assert (await node.sandboxes.get(sandbox.id)).state == "paused"
        monkeypatch.setattr(node.starter.spares, "_memory", host.memory)
        await asyncio.gather(rig.create(), node.sandboxes.resume(sandbox.id, 60))
    finally:
        await node.stop()


def test_a_start_is_judged_by_the_dearest_of_its_kind_lately() -> None:
    starts, most = costs.StartCosts(), 1 << 40
    assert starts.expected("a", 0, most) == costs.FIRST_GUESS
    assert starts.expected("a", 5, most) == costs.FIRST_GUESS + 5
    assert starts.expected("a", 5, 1000) == 1000
    starts.note("a", 10, 0)  # it had ended
    assert starts.expected("a", 0, most) == costs.FIRST_GUESS
    starts.note("a", 10, 20)
    assert starts.expected("a", 0, most) == costs.FLOOR
    starts.note("a", 1 << 30, 3 << 30)
    assert starts.expected("a", 7, most) == (2 << 30) + 7
    assert starts.expected("b", 0, most) == costs.FIRST_GUESS
    for _ in range(costs.REMEMBERED):
        starts.note("a", 0, costs.FLOOR + 1)
    assert starts.expected("a", 0, most) == costs.FLOOR + 1
    for number in range(costs.KINDS):
        starts.note(f"another {number}", 0, 1)
    assert starts.expected("a", 0, most) == costs.FIRST_GUESS


async def test_a_start_that_would_cost_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs is known from others, and from what its capture holds."""
    off = {"hot_vms": 0, "bare_vms": 0, "stopped_vms": 0}
    settings = fake_settings(tmp_path, reserved_memory_mib=1000, memory_mib=4096, **off)
    node = Node(settings)
    await node.start()
    try:
        rig = Rig(node, settings)
        rig.runtime.holds_memory = True
        rig.runtime.memory = MemoryUse(private=300 << 20)
        available = 1200 << 20
        monkeypatch.setattr(node.starter.spares, "_memory", lambda: HostMemory(8000 << 20, available))
        sandbox = await rig.create()
        with pytest.raises(Overloaded, match="1200 MiB"):
            await rig.create()
        available = 1301 << 20
        await rig.create()
        await node.sandboxes.pause(sandbox.id)
        get = node.captures.get

        async def with_delta(capture_id: str) -> Capture:
            capture = await get(capture_id)
            delta = Layer("memory-delta", tmp_path / "delta", 2 << 30)
            return dataclasses.replace(capture, layers=(*capture.layers, delta))

        with monkeypatch.context() as patch:
            patch.setattr(node.captures, "get", with_delta)
            with pytest.raises(Overloaded):
                await node.sandboxes.resume(sandbox.id, 60)
        await node.sandboxes.resume(sandbox.id, 60)
    finally:
        await node.stop()


async def test_bare_vmms_that_hold_a_base_which_is_gone_are_given_up(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "home", hot_vms=0, stopped_vms=0, bare_vms=2)
    rig = Rig(node := Node(settings), settings)
    await node.start()
    rig.runtime.holds_memory = True
    bare = node.starter.bare
    sandbox = await rig.create()
    await node.sandboxes.pause(sandbox.id)
    await node.sandboxes.connect(sandbox.id, 60)  # from a memory of its own

    async def filled() -> bool:
        return bare.count() == 2

    async def empty() -> bool:
        return bare.count() == bare.wanted() == len(node.starter._examples) == 0

    await eventually(filled, 20)
    await node.sandboxes.kill(sandbox.id)
    await eventually(empty, 20)
    await node.sandboxes.kill((await rig.create()).id)
    await eventually(filled, 20)  # the base of the template is there yet
    await node.stop()
    assert not rig.network.in_use
