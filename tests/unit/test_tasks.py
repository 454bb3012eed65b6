"""The helpers for tasks."""

from __future__ import annotations

import asyncio

from aenv.errors import RuntimeFailure
from aenv.tasks import Meeting


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
