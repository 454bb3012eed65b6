"""Work that nobody waits for leaves room for what somebody waits for."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from aenv.runtimes.qemu.compaction import Workshop

PIECE = 0.02


@pytest.fixture
async def workshop() -> AsyncIterator[Workshop]:
    workshop = Workshop()
    yield workshop
    await workshop.close()


async def test_it_rests_as_long_as_it_works(workshop: Workshop) -> None:
    def work(go_on: Callable[[], None]) -> float:
        worked = 0.0
        for _ in range(10):
            begun = time.monotonic()
            time.sleep(PIECE)
            worked += time.monotonic() - begun
            go_on()
        return worked

    begun = time.monotonic()
    worked = await workshop.run(work)
    assert time.monotonic() - begun >= 2 * worked


async def test_it_holds_no_lock_at_a_lower_priority_than_the_server(workshop: Workshop) -> None:
    def work(_go_on: Callable[[], None]) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await workshop.run(work) == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def test_it_stops_when_nobody_wants_it_any_more(workshop: Workshop) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work(go_on: Callable[[], None]) -> None:
        try:
            while True:
                time.sleep(PIECE)
                begun.set()
                go_on()
        finally:
            time.sleep(PIECE)
            stopped.set()

    running = asyncio.ensure_future(workshop.run(work))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # while it stops
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stopped.is_set()
