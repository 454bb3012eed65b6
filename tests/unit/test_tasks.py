"""The helpers for tasks."""

from __future__ import annotations

import asyncio

import pytest

from aenv.errors import RuntimeFailure
from aenv.tasks import Meeting, cancel


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
