"""What goes wrong below an operation leaves neither a leak nor a sandbox that nobody can use."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import GuestUnresponsive, PauseRefused, RuntimeFailure, VmmUnresponsive
from aenv.guest.client import EnvdClient
from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.activity import Activity
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.pools import Pool
from aenv.sandboxes.states import State
from aenv.tasks import cancel
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings
from tests.unit.sandboxes.spare import Thing, make


def _machine(rig: Rig, sandbox_id: str) -> Machine:
    machine = rig.node.sandboxes._core.live.machine(sandbox_id)
    assert machine is not None
    return machine


async def _in_state(rig: Rig, state: State) -> list[str]:
    database = rig.node.sandboxes._core.database
    return [each.id for each in await database.run(lambda c: store.in_states(c, {state}))]


async def test_a_kill_that_fails_ends_with_a_lost_sandbox(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await rig.create()
    machine = _machine(rig, sandbox.id)

    async def fail() -> None:
        raise RuntimeFailure("it can't be stopped")

    with monkeypatch.context() as broken:
        broken.setattr(machine.instance, "stop", fail)
        with pytest.raises(RuntimeFailure, match="can't be stopped"):
            await rig.node.sandboxes.kill(sandbox.id)
    assert await _in_state(rig, State.KILLING) == []
    assert await _in_state(rig, State.LOST) == [sandbox.id]
    row = await rig.node.captures._database.run(lambda c: store.get(c, sandbox.id))
    assert row is not None
    assert row.reason == "kill failed half-way"
    await rig.node.sandboxes._core.machines.destroy(machine)


async def test_a_lost_sandbox_is_forgotten_while_the_server_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, other = await rig.create(), await rig.create()
    (await rig.instance(lost.id)).die("killed")

    async def is_lost() -> bool:
        return await _in_state(rig, State.LOST) == [lost.id]

    await eventually(is_lost)
    await rig.node.sandboxes.kill(other.id)
    assert await is_lost(), "the reason is kept for a day"
    monkeypatch.setattr("aenv.sandboxes.core.LOST_KEPT_SECONDS", -1.0)
    await rig.node.sandboxes.kill((await rig.create()).id)
    assert await _in_state(rig, State.LOST) == []


async def test_a_vmm_that_is_late_loses_no_sandbox(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    for operation in ("freeze", "thaw"):
        rig.runtime.order_failure(operation, VmmUnresponsive("it takes its time"))
    with pytest.raises(VmmUnresponsive):
        await rig.node.sandboxes.pause(sandbox.id)
    assert (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_guest_that_is_late_is_asked_again_to_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.sandboxes.core.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("aenv.sandboxes.capturing.FREEZE_TIMEOUT", 0.1)
    sandbox = await rig.create()
    guest = (await rig.instance(sandbox.id)).guest
    guest.responsive.clear()
    with pytest.raises(PauseRefused):
        await rig.node.sandboxes.pause(sandbox.id, require_healthy_guest=True)
    before = guest.clock
    guest.responsive.set()

    async def is_told() -> bool:
        return guest.clock > before

    await eventually(is_told)


async def test_a_guest_that_was_late_for_a_snapshot_is_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.sandboxes.core.RETRY_SECONDS", 0.05)
    unfreeze, late = EnvdClient.unfreeze, [TimeoutError(), TimeoutError()]

    async def slow(guest: EnvdClient, *, set_clock: bool) -> None:
        if late:
            raise late.pop()
        await unfreeze(guest, set_clock=set_clock)

    monkeypatch.setattr(EnvdClient, "unfreeze", slow)
    sandbox = await rig.create()
    guest = (await rig.instance(sandbox.id)).guest
    before = guest.clock
    await rig.node.sandboxes.snapshot(sandbox.id, None)
    assert late == [], "the snapshot asked twice"

    async def is_told() -> bool:
        return guest.clock > before

    await eventually(is_told)


async def test_a_hot_vm_that_does_not_come_back_costs_time_only(rig: Rig) -> None:
    await rig.pools_are_filled()
    if rig.settings.hot_vms:
        rig.runtime.order_failure("thaw", RuntimeFailure("no"))
    assert (await rig.create()).state is State.RUNNING


async def test_a_spare_that_cannot_be_ended_does_not_end_its_pool() -> None:
    async def dispose(thing: Thing) -> None:
        if thing.key == "stuck":
            raise RuntimeFailure("it can't be ended")

    pool = Pool("test", 1, 1, make=make, dispose=dispose, ended=lambda _: False, activity=Activity())
    running = asyncio.ensure_future(pool.run())
    for key in ("stuck", "next"):
        pool.want(key)

        async def is_there(key: str = key) -> bool:
            return pool.count(key) == 1

        await eventually(is_there)
    await cancel(running)


async def test_processes_go_on_though_the_first_request_to_let_them_was_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    guest = _machine(rig, sandbox.id).guest
    unfreeze, asked = guest.unfreeze, 0

    async def deaf_once(**named: bool) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise GuestUnresponsive("the capture took too long")
        await unfreeze(**named)

    monkeypatch.setattr(guest, "unfreeze", deaf_once)
    await rig.node.sandboxes.snapshot(sandbox.id)
    assert await rig.read(sandbox.id, "frozen") is False


@pytest.mark.parametrize("operation", ["snapshot", "fork", "failed pause"])
async def test_a_guest_that_stood_still_is_told_the_time(rig: Rig, operation: str) -> None:
    sandbox, sandboxes = await rig.create(), rig.node.sandboxes
    instance = await rig.instance(sandbox.id)

    async def do() -> None:
        if operation == "fork":
            await sandboxes.fork(sandbox.id, 1)
        elif operation == "snapshot":
            await sandboxes.snapshot(sandbox.id)
        else:
            rig.runtime.order_failure("capture", RuntimeFailure("ordered"))
            with pytest.raises(RuntimeFailure):
                await sandboxes.pause(sandbox.id)

    async def stands_still() -> bool:
        return instance.frozen

    with rig.runtime.hold("thaw"):
        doing = asyncio.ensure_future(do())
        await eventually(stands_still)
        until = time.time()
    await doing
    assert until <= instance.guest.clock <= time.time()


async def test_a_child_that_fails_unforeseen_does_not_hide_its_siblings(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await rig.create()
    start, started = rig.node.starter.start, 0

    async def fail_first(*arguments: Any, **options: Any) -> Machine:
        nonlocal started
        started += 1
        if started == 1:
            raise OSError("a surprise")
        return await start(*arguments, **options)

    monkeypatch.setattr(rig.node.starter, "start", fail_first)
    failed, child = await rig.node.sandboxes.fork(parent.id, 2)
    assert isinstance(failed, RuntimeFailure)
    assert isinstance(child, Sandbox)
    assert await _in_state(rig, State.CREATING) == []


async def test_traffic_resumes_though_the_longest_timeout_is_short(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, max_timeout=60)
    node = Node(settings)
    await node.start()
    rig = Rig(node, settings)
    sandbox = await rig.create(auto_resume=True)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.endpoint(sandbox.id)
    await node.stop()


async def test_a_file_that_does_not_belong_into_the_captures_keeps_no_server_from_starting(
    tmp_path: Path,
) -> None:
    settings = fake_settings(tmp_path)
    settings.captures_dir.mkdir()
    (settings.captures_dir / "stray").write_text("?")
    node = Node(settings)
    await node.start()
    await node.stop()
