"""How operations follow each other."""

from __future__ import annotations

import asyncio

import pytest

from aenv.bench import pace
from aenv.bench.pace import Mode, Pace


@pytest.mark.parametrize(("mode", "batches"), [("sequential", [1, 1, 1]), ("staggered", [3]), ("burst", [3])])
def test_only_a_sequence_leads_its_sandboxes_one_by_one(mode: str, batches: list[int]) -> None:
    assert Pace(Mode(mode), 3).batches() == batches


async def test_a_burst_begins_everything_at_once_and_keeps_the_order() -> None:
    begun: list[int] = []
    all_there = asyncio.Event()

    async def operation(number: int) -> int:
        begun.append(number)
        if len(begun) == 3:
            all_there.set()
        await all_there.wait()  # would wait for ever if one came after the other
        return 10 * number

    async with asyncio.timeout(30):
        assert await Pace(Mode.BURST, 3).each([1, 2, 3], operation) == [10, 20, 30]


async def test_staggered_operations_overlap_and_begin_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "STAGGER_SECONDS", 0.01)
    times: list[float] = []
    all_there = asyncio.Event()

    async def operation(_: int) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 3:
            all_there.set()
        await all_there.wait()

    begin = asyncio.get_running_loop().time()
    async with asyncio.timeout(30):
        await Pace(Mode.STAGGERED, 3).each([1, 2, 3], operation)
    # A machine that stood still for a moment may begin two together, but none too early.
    assert all(time - begin >= 0.009 * number for number, time in enumerate(times))
