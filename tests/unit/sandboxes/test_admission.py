"""No more runs at a time than fits, counted rightly whatever happens at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv import host
from aenv.errors import AenvError, LimitReached, Overloaded, RuntimeFailure
from aenv.node import Node
from aenv.sandboxes.models import Sandbox
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings

SIZE = {"cpu_count": 2, "memory_mib": 512}


@asynccontextmanager
async def limited(home: Path, fits: int, **changes: Any) -> AsyncIterator[Rig]:
    """A node on which so many sandboxes may run, by their vCPUs."""
    overcommit = fits * SIZE["cpu_count"] / host.cpus()
    settings = fake_settings(home, cpu_overcommit=overcommit, **{**SIZE, **changes})
    node = Node(settings)
    await node.start()
    try:
        yield Rig(node, settings)
    finally:
        await node.stop()


def refused(results: Sequence[object]) -> int:
    """How many were refused for the limit; all others are sandboxes."""
    assert all(isinstance(each, LimitReached | Sandbox) for each in results), results
    return sum(isinstance(each, LimitReached) for each in results)


async def creates(rig: Rig, count: int) -> list[Sandbox | BaseException]:
    return await asyncio.gather(*(rig.create() for _ in range(count)), return_exceptions=True)


async def test_creates_at_once_stay_within_the_limit(tmp_path: Path) -> None:
    async with limited(tmp_path, 3) as rig:
        assert refused(await creates(rig, 8)) == 5
        with pytest.raises(LimitReached, match=r"6 of the 6 vCPUs .* needs 2: pause or kill") as error:
            await rig.create()
        assert error.value.status == 429
        assert error.value.retry_after is not None


async def test_the_memory_of_guests_counts_too(tmp_path: Path) -> None:
    total = host.memory().total >> 20
    overcommit = 2.5 * SIZE["memory_mib"] / total
    async with limited(tmp_path, 100, memory_overcommit=overcommit) as rig:
        assert refused(await creates(rig, 4)) == 2
        with pytest.raises(LimitReached, match=r"1024 of the .* MiB .* needs 512"):
            await rig.create()


async def test_zero_is_no_limit(tmp_path: Path) -> None:
    async with limited(tmp_path, 0, memory_overcommit=0) as rig:
        assert refused(await creates(rig, 8)) == 0


async def test_what_ends_pauses_or_fails_makes_room(tmp_path: Path) -> None:
    async with limited(tmp_path, 1, hot_vms=0, bare_vms=0, stopped_vms=0) as rig:
        for _ in range(2):
            rig.runtime.order_failure("spawn", RuntimeFailure("ordered"))
            with pytest.raises(RuntimeFailure):
                await rig.create()
        first = await rig.create()
        with pytest.raises(LimitReached):
            await rig.create()
        await rig.node.sandboxes.pause(first.id)
        second = await rig.create()
        with pytest.raises(LimitReached):
            await rig.node.sandboxes.resume(first.id, 60)
        assert (await rig.node.sandboxes.get(first.id)).state == "paused"
        await rig.node.sandboxes.kill(second.id)
        await rig.node.sandboxes.resume(first.id, 60)
        rig.runtime.order_failure("capture", RuntimeFailure("ordered"))
        with pytest.raises(RuntimeFailure):
            await rig.node.sandboxes.pause(first.id)
        with pytest.raises(LimitReached):  # it runs on, so it counts
            await rig.create()
        (await rig.instance(first.id)).die("a crash")

        async def noticed() -> bool:
            return rig.node.sandboxes.live_endpoint(first.id) is None

        await eventually(noticed, 10)
        await rig.create()


async def test_a_fork_that_fits_in_part_tells_it_of_each_child(tmp_path: Path) -> None:
    async with limited(tmp_path, 3) as rig:
        parent = await rig.create()
        children = await rig.node.sandboxes.fork(parent.id, 4)
        assert refused(children) == 2
        captures = set(rig.settings.captures_dir.iterdir())
        with pytest.raises(LimitReached):
            await rig.node.sandboxes.fork(parent.id, 2)
        assert set(rig.settings.captures_dir.iterdir()) == captures  # not one fitted: nothing was captured
        assert (await rig.node.sandboxes.get(parent.id)).state == "running"


async def test_traffic_that_finds_no_room_is_told_to_come_again(tmp_path: Path) -> None:
    async with limited(tmp_path, 1) as rig:
        sleeping = await rig.create(auto_resume=True)
        await rig.node.sandboxes.pause(sleeping.id)
        running = await rig.create()
        with pytest.raises(Overloaded) as error:
            await rig.node.sandboxes.endpoint(sleeping.id)
        assert error.value.status == 503
        assert error.value.retry_after is not None
        await rig.node.sandboxes.kill(running.id)
        await rig.node.sandboxes.endpoint(sleeping.id)


async def test_paused_sandboxes_count_only_once_they_run_again_after_a_restart(tmp_path: Path) -> None:
    async with limited(tmp_path, 2) as rig:
        ids = [(await rig.create()).id for _ in range(2)]
    async with limited(tmp_path, 2) as rig:
        await rig.node.sandboxes.connect(ids[0], 60)
        await rig.create()
        with pytest.raises(LimitReached):
            await rig.node.sandboxes.connect(ids[1], 60)


async def test_a_rollback_at_the_limit_counts_and_is_not_refused(tmp_path: Path) -> None:
    total = host.memory().total >> 20
    overcommit = 2.5 * SIZE["memory_mib"] / total
    async with limited(tmp_path, 100, memory_overcommit=overcommit, hot_vms=0) as rig:
        sandboxes, admission = rig.node.sandboxes, rig.node.sandboxes._core.admission
        sandbox = await rig.create()
        snapshot = await sandboxes.snapshot(sandbox.id)

        async def starts_beside() -> bool:
            return admission.used().memory_mib == 2 * SIZE["memory_mib"]

        for failure in (None, RuntimeFailure("ordered")):
            with rig.runtime.hold("load"):
                rolling = asyncio.ensure_future(sandboxes.roll_back(sandbox.id, snapshot.snapshot_id))
                await eventually(starts_beside)
                assert admission.used().cpus == SIZE["cpu_count"]  # the old VM's vCPUs stand still
                with pytest.raises(LimitReached, match="1024 of"):
                    await rig.create()
                if failure is not None:
                    rig.runtime.order_failure("load", failure)
            assert (await asyncio.gather(rolling, return_exceptions=True))[0] is failure
            assert admission.used().memory_mib == SIZE["memory_mib"]
        await rig.create()
        await sandboxes.roll_back(sandbox.id, snapshot.snapshot_id)


@pytest.mark.parametrize("wait", [60.0, 0.02])
async def test_two_hundred_creates_at_once_are_served_or_refused(tmp_path: Path, wait: float) -> None:
    settings = {"max_queued_starts": 150, "max_start_wait": wait, "concurrent_starts": 2}
    async with limited(tmp_path, 120, hot_vms=2, bare_vms=0, **settings) as rig:
        results = await creates(rig, 200)
        others = [each for each in results if not isinstance(each, Sandbox)]
        assert all(isinstance(each, AenvError) and each.status in (429, 503) for each in others)
        assert all(isinstance(each, AenvError) and each.retry_after for each in others)
        started = [each for each in results if isinstance(each, Sandbox)]
        assert 0 < len(started) <= 120
        assert len(rig.node.sandboxes._core.live.resources()) == len(started)
        if wait == 60.0:
            assert results[:100] == started[:100]  # first come, first served
