"""Requests that meet: every pair has one defined outcome."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aenv.errors import AenvError, SandboxNotFound, SandboxNotRunning
from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.deadlines import AT_ONCE
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings


async def _state(rig: Rig, sandbox_id: str) -> State | None:
    try:
        return (await rig.node.sandboxes.get(sandbox_id)).state
    except SandboxNotFound:
        return None


async def test_a_second_pause_joins_the_first(rig: Rig) -> None:
    sandbox = await rig.create()
    guest = (await rig.instance(sandbox.id)).guest
    guest.responsive.clear()  # the first pause waits for it
    first = asyncio.ensure_future(rig.node.sandboxes.pause(sandbox.id))

    async def is_under_way() -> bool:
        return await _state(rig, sandbox.id) is State.PAUSING

    await eventually(is_under_way)
    second = asyncio.ensure_future(rig.node.sandboxes.pause(sandbox.id))
    await asyncio.sleep(0)  # it has begun
    guest.responsive.set()
    await asyncio.gather(first, second)
    assert await _state(rig, sandbox.id) is State.PAUSED


@pytest.mark.parametrize("operation", ["pause", "snapshot", "fork", "connect"])
async def test_a_kill_beats_whatever_is_under_way(rig: Rig, operation: str) -> None:
    sandbox = await rig.create()
    sandboxes = rig.node.sandboxes
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "pause": lambda: sandboxes.pause(sandbox.id),
        "snapshot": lambda: sandboxes.snapshot(sandbox.id),
        "fork": lambda: sandboxes.fork(sandbox.id, 2),
        "connect": lambda: sandboxes.connect(sandbox.id, 60),
    }
    first, killed = await asyncio.gather(
        operations[operation](), sandboxes.kill(sandbox.id), return_exceptions=True
    )
    assert killed is None
    assert not isinstance(first, BaseException) or isinstance(first, AenvError)
    assert await _state(rig, sandbox.id) is None


async def test_two_kills_have_one_winner(rig: Rig) -> None:
    sandbox = await rig.create()
    results = await asyncio.gather(
        *(rig.node.sandboxes.kill(sandbox.id) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "SandboxNotFound"]


async def test_two_connects_resume_once(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(sandbox.id)
    results = await asyncio.gather(*(rig.node.sandboxes.connect(sandbox.id, 60) for _ in range(4)))
    assert sorted(resumed for _, resumed in results) == [False, False, False, True]


async def test_a_connect_during_a_pause_waits_and_resumes(rig: Rig) -> None:
    sandbox = await rig.create()
    _, (connected, _) = await asyncio.gather(
        rig.node.sandboxes.pause(sandbox.id), rig.node.sandboxes.connect(sandbox.id, 60)
    )
    assert connected.state is State.RUNNING
    assert await _state(rig, sandbox.id) is State.RUNNING


async def test_traffic_during_a_pause_waits_and_is_served(rig: Rig) -> None:
    sandbox = await rig.create(auto_resume=True)
    await rig.put(sandbox.id, "value", 5)
    _, value = await asyncio.gather(rig.node.sandboxes.pause(sandbox.id), rig.read(sandbox.id, "value"))
    assert value == 5


async def test_fork_and_pause_both_happen(rig: Rig) -> None:
    sandbox = await rig.create()
    children, paused = await asyncio.gather(
        rig.node.sandboxes.fork(sandbox.id, 2), rig.node.sandboxes.pause(sandbox.id)
    )
    assert paused is None
    assert all(isinstance(child, Sandbox) for child in children)
    assert await _state(rig, sandbox.id) is State.PAUSED


async def test_an_operation_ends_though_its_caller_went_away(rig: Rig) -> None:
    sandbox = await rig.create()
    task = asyncio.ensure_future(rig.node.sandboxes.pause(sandbox.id))
    await asyncio.sleep(0)  # the request has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def is_paused() -> bool:
        return await _state(rig, sandbox.id) is State.PAUSED

    await eventually(is_paused)
    await rig.node.sandboxes.connect(sandbox.id, 60)


async def test_at_the_deadline_a_sandbox_is_paused_or_killed(rig: Rig) -> None:
    paused = await rig.create(timeout=0.3)
    killed = await rig.create(timeout=0.3, auto_pause=False)

    async def both_ended() -> bool:
        return await _state(rig, paused.id) is State.PAUSED and await _state(rig, killed.id) is None

    await eventually(both_ended)


async def test_many_deadlines_at_once_are_kept(rig: Rig) -> None:
    created = await asyncio.gather(*(rig.create(timeout=0.5) for _ in range(12)))

    async def all_paused() -> bool:
        return all([await _state(rig, sandbox.id) is State.PAUSED for sandbox in created])

    await eventually(all_paused)


async def test_many_deadlines_at_once_delay_nobody_else(tmp_path: Path) -> None:
    """They are handled side by side, a bounded number at a time; other requests don't wait for them."""
    settings = fake_settings(tmp_path, hot_vms=0, bare_vms=0, metrics_interval=0)
    node = Node(settings)
    await node.start()
    rig = Rig(node, settings)
    sandboxes, core = rig.node.sandboxes, rig.node.sandboxes._core
    crowd = [await rig.create() for _ in range(100)]
    other = await rig.create()

    async def counts(state: State) -> int:
        return (await sandboxes.census()).sandboxes[state]

    async def as_many_as_may_be() -> bool:
        return await counts(State.PAUSING) == AT_ONCE

    async def all_but_one_paused() -> bool:
        return await counts(State.PAUSED) == len(crowd) - 1

    def let_expire(connection: sqlite3.Connection) -> None:
        for sandbox in crowd:
            store.change(connection, sandbox.id, {State.RUNNING}, end_at=time.time())

    with rig.runtime.hold("capture"):
        await core.database.run(let_expire)
        await eventually(as_many_as_may_be, 30)
        # All that are being paused are stuck, and yet:
        await rig.put(other.id, "value", 1)
        await sandboxes.refresh(other.id, 600)
        await sandboxes.kill((await rig.create()).id)
        rows = [await sandboxes.get(each.id) for each in crowd]
        waiting = next(row for row in rows if row.state is State.RUNNING)
        await sandboxes.set_timeout(waiting.id, 600)
        assert await counts(State.PAUSING) == AT_ONCE
    await eventually(all_but_one_paused, 60)
    assert await _state(rig, waiting.id) is State.RUNNING
    assert await _state(rig, other.id) is State.RUNNING
    await node.stop()


async def test_deadlines_move_as_documented(rig: Rig) -> None:
    sandboxes = rig.node.sandboxes
    sandbox = await rig.create(timeout=100)
    await sandboxes.refresh(sandbox.id, 10)
    assert (await sandboxes.get(sandbox.id)).end_at == sandbox.end_at
    await sandboxes.connect(sandbox.id, 10)
    assert (await sandboxes.get(sandbox.id)).end_at == sandbox.end_at
    await sandboxes.refresh(sandbox.id, 1000)
    assert (await sandboxes.get(sandbox.id)).end_at > time.time() + 900
    await sandboxes.set_timeout(sandbox.id, 20)
    assert (await sandboxes.get(sandbox.id)).end_at < time.time() + 21


async def test_a_keep_alive_and_the_expiry_cannot_both_win(rig: Rig) -> None:
    sandbox = await rig.create(timeout=0.4)
    await asyncio.sleep(0.35)
    try:
        await rig.node.sandboxes.refresh(sandbox.id, 100)
    except SandboxNotRunning:
        assert await _state(rig, sandbox.id) is State.PAUSED
    else:
        await asyncio.sleep(0.7)
        assert await _state(rig, sandbox.id) is State.RUNNING
