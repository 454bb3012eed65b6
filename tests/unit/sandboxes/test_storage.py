"""The database can't be used for a while, as on a full disk: nothing is lost, and all goes on afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from aenv.errors import InvalidRequest, RuntimeFailure, SandboxLost, StorageFailure
from aenv.sandboxes import deadlines, store
from aenv.sandboxes.models import CreateSandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually


async def _writable(rig: Rig, *, yes: bool) -> None:
    database = rig.node.captures._database
    pragma = f"PRAGMA query_only = {int(not yes)}"
    await asyncio.get_running_loop().run_in_executor(database._thread, database._connection.execute, pragma)


def _captures(rig: Rig) -> list[str]:
    return sorted(path.name for path in rig.settings.captures_dir.iterdir())


async def _full_after(rig: Rig, thing: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database refuse writes as soon as `thing.method` has returned."""
    original = getattr(thing, method)

    async def wrapped(*arguments: Any, **named: Any) -> Any:
        result = await original(*arguments, **named)
        await _writable(rig, yes=False)
        return result

    monkeypatch.setattr(thing, method, wrapped)


@pytest.mark.parametrize("operation", ["pause", "snapshot", "fork"])
async def test_a_capture_that_is_not_recorded_did_not_happen(
    rig: Rig, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    before = _captures(rig)
    with monkeypatch.context() as patch:
        await _full_after(rig, await rig.instance(sandbox.id), "capture", patch)
        with pytest.raises(StorageFailure):
            await getattr(rig.node.sandboxes, operation)(sandbox.id, *([2] if operation == "fork" else []))
    assert _captures(rig) == before
    await _writable(rig, yes=True)
    assert await rig.read(sandbox.id, "value") == 1

    async def recorded() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.RUNNING

    await eventually(recorded)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1


async def _is_lost(rig: Rig, sandbox_id: str) -> bool:
    found = await rig.node.captures._database.run(lambda c: store.get(c, sandbox_id))
    return found is not None and found.state is State.LOST


async def test_a_vm_that_dies_unrecorded_is_lost_later(rig: Rig) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)
    await _writable(rig, yes=False)
    instance.die("killed")

    async def given_back() -> bool:
        return rig.node.sandboxes.live_endpoint(sandbox.id) is None and instance not in set(
            rig.runtime.instances.values()
        )

    await eventually(given_back, 20)
    await _writable(rig, yes=True)
    await eventually(lambda: _is_lost(rig, sandbox.id), 20)
    with pytest.raises(SandboxLost, match="killed"):
        await rig.node.sandboxes.kill(sandbox.id)


async def test_a_vm_that_dies_unrecorded_during_a_snapshot_is_lost_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    instance = await rig.instance(sandbox.id)

    async def dies(*_arguments: Any, **_named: Any) -> Any:
        await _writable(rig, yes=False)
        instance.die("killed")
        raise RuntimeFailure("the VM has ended")

    monkeypatch.setattr(instance, "capture", dies)
    with pytest.raises(RuntimeFailure):
        await rig.node.sandboxes.snapshot(sandbox.id)
    await _writable(rig, yes=True)
    await eventually(lambda: _is_lost(rig, sandbox.id), 20)


async def test_a_resume_that_is_not_recorded_leaves_the_sandbox_paused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    await rig.node.sandboxes.pause(sandbox.id)
    with monkeypatch.context() as patch:
        await _full_after(rig, rig.node.starter, "start", patch)
        with pytest.raises(StorageFailure):
            await rig.node.sandboxes.connect(sandbox.id, 60)
    await _writable(rig, yes=True)

    async def recorded() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED

    await eventually(recorded)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    assert await rig.read(sandbox.id, "value") == 1


async def test_a_create_that_is_not_recorded_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await _full_after(rig, rig.node.starter, "start", patch)
        with pytest.raises(StorageFailure):
            await rig.node.sandboxes.create(CreateSandbox(template="base", timeout=60.0, auto_pause=True))
    await _writable(rig, yes=True)

    async def gone() -> bool:
        rows = await rig.node.captures._database.run(lambda c: store.in_states(c, set(State)))
        return not rows

    await eventually(gone)


async def test_a_snapshot_that_is_refused_leaves_no_files(rig: Rig) -> None:
    sandbox = await rig.create()
    before = _captures(rig)
    with pytest.raises(InvalidRequest, match="belongs to a template"):
        await rig.node.sandboxes.snapshot(sandbox.id, "base")
    assert _captures(rig) == before


async def test_deadlines_are_kept_after_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0

    def expired(connection: sqlite3.Connection, now: float) -> list[str]:
        nonlocal failures
        failures += 1
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(store, "expired", expired)
        monkeypatch.setattr(deadlines, "RETRY_SECONDS", 0.1)

        async def failed() -> bool:
            return failures > 0

        await eventually(failed)
    sandbox = await rig.create(timeout=0.1)

    async def paused() -> bool:
        return (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED

    await eventually(paused, 20)
