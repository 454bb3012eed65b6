"""The helpers for tasks."""

from __future__ import annotations

import asyncio
import time

import pytest

from aenv.errors import RuntimeFailure
from aenv.tasks import Meeting, cancel, finish, together


async def test_who_leaves_a_meeting_isnt_waited_for() -> None:
    meeting = Meeting(3)
    came: list[int] = []

    async def member(number: int) -> None:
        with meeting.attend() as meet:
            if number == 0:
                raise RuntimeFailure("it doesn't come")
            await meet()
            came.append(number)

    async with asyncio.timeout(60):
        results = await asyncio.gather(*map(member, range(3)), return_exceptions=True)
    assert sorted(came) == [1, 2]
    assert isinstance(results[0], RuntimeFailure)


async def test_a_step_goes_to_its_end_when_cancelled() -> None:
    finished: list[str] = []
    undone: list[str] = []

    def step() -> str:
        time.sleep(0.1)
        finished.append("step")
        return "result"

    task = asyncio.create_task(finish(asyncio.to_thread(step), undo=undone.append))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (finished, undone) == (["step"], ["result"])


async def test_together_waits_for_the_other_before_it_fails() -> None:
    finished: list[str] = []

    async def fail() -> None:
        raise ValueError("first")

    async def work() -> None:
        await asyncio.sleep(0.05)
        finished.append("work")

    with pytest.raises(ValueError, match="first"):
        await together(fail(), work())
    assert finished == ["work"]


async def test_work_that_fails_after_its_caller_was_cancelled_ends_as_a_cancellation() -> None:
    undone: list[None] = []

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise OSError("the disk is gone")

    task = asyncio.create_task(finish(fail(), undo=undone.append))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == []


async def test_work_that_outlives_a_bound_is_waited_for_and_then_late() -> None:
    finished: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.05)
        finished.append("work")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await finish(work())
    assert finished == ["work"]


async def _forever() -> None:
    await asyncio.Event().wait()


async def _slow_to_end() -> None:
    try:
        await _forever()
    finally:
        await asyncio.sleep(0.05)


async def _fails_to_end() -> None:
    try:
        await _forever()
    finally:
        raise RuntimeFailure("it didn't end well")


async def test_all_are_cancelled_though_the_caller_is_cancelled_too() -> None:
    tasks = [asyncio.ensure_future(_slow_to_end()) for _ in range(3)]

    async def owner() -> None:
        try:
            await _forever()
        finally:
            await cancel(*tasks)

    owning = asyncio.ensure_future(owner())
    await asyncio.sleep(0)
    owning.cancel()
    await asyncio.sleep(0)
    owning.cancel()  # while it waits for them
    with pytest.raises(asyncio.CancelledError):
        await owning
    assert all(task.cancelled() for task in tasks)


async def test_all_are_cancelled_by_an_owner_that_ran_out_of_time() -> None:
    tasks = [asyncio.ensure_future(_forever()) for _ in range(3)]

    async def owner() -> None:
        async with asyncio.timeout(0.01):
            try:
                await _forever()
            finally:
                await cancel(*tasks)

    with pytest.raises(TimeoutError):
        await owner()
    assert all(task.cancelled() for task in tasks)


async def test_a_task_that_fails_to_end_keeps_no_other_from_its_end() -> None:
    tasks = [asyncio.ensure_future(work()) for work in (_fails_to_end, _slow_to_end, _fails_to_end)]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeFailure, match="end well"):
        await cancel(*tasks)
    assert tasks[1].cancelled()
    await cancel()  # nobody
