"""The queue of starts: bounded, fair between groups, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aenv.errors import Overloaded
from aenv.sandboxes.turns import LONGEST_RETRY, StartTurns


class Rush:
    """Starts that come at once; each takes a turn and notes when it got it."""

    def __init__(self, turns: StartTurns) -> None:
        self.turns = turns
        self.order: list[str] = []
        self.under_way = self.most = 0

    async def start(self, group: str) -> None:
        async with self.turns.turn(group):
            await self._work(group)

    async def spare(self) -> None:
        await self.turns.idle()
        await self._work("spare")

    async def _work(self, group: str) -> None:
        self.order.append(group)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1

    async def all(self, groups: Sequence[str]) -> list[str]:
        """The outcome of each: `ok`, or why it was refused."""
        results = await asyncio.gather(*(self.start(each) for each in groups), return_exceptions=True)
        for each in results:
            if isinstance(each, BaseException) and not isinstance(each, Overloaded):
                raise each
        return ["ok" if each is None else str(each) for each in results]


async def test_groups_take_turns_and_each_keeps_its_order() -> None:
    rush = Rush(StartTurns(1, 100, 10))
    groups = ["fork"] * 50 + ["create", "resume", "create"]
    assert await rush.all(groups) == ["ok"] * len(groups)
    assert rush.order[:7] == ["fork", "fork", "create", "resume", "fork", "create", "fork"]
    assert rush.turns.waiting == 0


async def test_no_more_at_once_than_allowed() -> None:
    rush = Rush(StartTurns(3, 100, 10))
    await rush.all(["a", "b"] * 20)
    assert rush.most == 3
    await rush.all(["a"] * 10)  # no turn was lost
    assert rush.most == 3


async def test_a_full_queue_refuses_the_latest() -> None:
    rush = Rush(StartTurns(1, 4, 10))
    outcomes = await rush.all(["create"] * 8)
    assert outcomes[:5] == ["ok"] * 5
    assert all("4 sandboxes are waiting" in each for each in outcomes[5:])


async def test_a_burst_gives_up_places_to_others() -> None:
    rush = Rush(StartTurns(1, 4, 10))
    outcomes = await rush.all(["fork"] * 5 + ["create"] * 3)
    # One fork runs and four wait; two give way, then both have two.
    assert outcomes[:3] == ["ok"] * 3
    assert all("share" in each for each in outcomes[3:5])
    assert outcomes[5:7] == ["ok"] * 2
    assert "no more may wait" in outcomes[7]
    assert rush.order == ["fork", "fork", "create", "fork", "create"]


async def test_who_waits_too_long_is_refused_and_told_when_to_come_again() -> None:
    turns = StartTurns(1, 4, 0.05)
    async with turns.turn("first"):
        with pytest.raises(Overloaded, match=r"no turn to start it within 0\.05 s") as refused:
            async with turns.turn("create"):
                raise AssertionError
        assert refused.value.retry_after is not None
        assert 1 <= refused.value.retry_after <= LONGEST_RETRY
        assert turns.waiting == 0
    async with turns.turn("create"):
        assert turns.waiting == 0


async def test_spares_wait_until_nobody_else_does() -> None:
    rush = Rush(StartTurns(1, 10, 10))
    async with rush.turns.turn("create"):
        waiting = [asyncio.create_task(work) for work in (rush.spare(), *(rush.start("a") for _ in range(3)))]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert rush.order == ["a"] * 3 + ["spare"]


async def test_a_cancelled_start_gives_its_turn_on() -> None:
    turns = StartTurns(1, 10, 10)
    rush = Rush(turns)
    async with turns.turn("first"):
        waiting = [asyncio.create_task(rush.start(str(number))) for number in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # while it waits
        await asyncio.wait(waiting[:1])
        assert turns.waiting == 2
    waiting[1].cancel()  # in the moment in which it has got its turn
    await asyncio.wait(waiting)
    assert [each.cancelled() for each in waiting] == [True, True, False]
    assert rush.order == ["2"]
    await rush.start("last")
