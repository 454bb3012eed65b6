"""What is there after the server ended, well or badly."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from aenv.errors import HostNotReady, SandboxNotFound, ShuttingDown
from aenv.node import Node
from aenv.runtimes.fake import FakeRuntime
from aenv.sandboxes import capturing
from aenv.sandboxes import core as core_module
from aenv.sandboxes.core import Core
from aenv.sandboxes.states import State
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings


async def _started(home: Path) -> Rig:
    settings = fake_settings(home)
    node = Node(settings)
    await node.start()
    return Rig(node, settings)


async def test_a_graceful_stop_pauses_everything(tmp_path: Path) -> None:
    rig = await _started(tmp_path)
    sandboxes = [await rig.create() for _ in range(3)]
    for number, sandbox in enumerate(sandboxes):
        await rig.put(sandbox.id, "value", number)
    await rig.node.stop()
    rig = await _started(tmp_path)
    for number, sandbox in enumerate(sandboxes):
        assert (await rig.node.sandboxes.get(sandbox.id)).state is State.PAUSED
        await rig.node.sandboxes.connect(sandbox.id, 60)
        assert await rig.read(sandbox.id, "value") == number
    await rig.node.stop()


async def test_a_stop_gives_stopped_vms_up_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(sandbox.id)
    assert rig.node.starter.stopped.count() == 1
    lose = AsyncMock()
    monkeypatch.setattr(Core, "_lose", lose)  # would ask a database that is closed by then
    await rig.node.stop()
    lose.assert_not_called()


@pytest.mark.parametrize(
    ("left", "found"),
    [
        ("creating", None),
        ("running", None),
        ("pausing", None),
        ("snapshotting", None),
        ("forking", None),
        ("killing", None),
        ("resuming", State.PAUSED),
        ("paused", State.PAUSED),
    ],
)
async def test_every_state_a_crash_can_leave_is_settled(
    tmp_path: Path, left: str, found: State | None
) -> None:
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    await rig.put(sandbox.id, "value", 1)
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.stop()
    with sqlite3.connect(rig.settings.database) as connection:
        connection.execute("UPDATE sandboxes SET record = json_set(record, '$.state', ?)", (left,))
    connection.close()
    litter = rig.settings.captures_dir / "cunfinished"
    litter.mkdir()
    (litter / "memory.json").write_text("half")

    rig = await _started(tmp_path)
    assert not litter.exists()
    if found is None:
        with pytest.raises(SandboxNotFound):
            await rig.node.sandboxes.get(sandbox.id)
    else:
        assert (await rig.node.sandboxes.get(sandbox.id)).state is found
        await rig.node.sandboxes.connect(sandbox.id, 60)
        assert await rig.read(sandbox.id, "value") == 1
    await rig.node.stop()


async def test_a_host_that_is_not_as_before_leaves_everything_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.stop()
    litter = rig.settings.workspace_dir / "sfolder"
    litter.mkdir()
    update = (
        "UPDATE sandboxes SET record = json_set(record, '$.state', 'running', '$.instance_id', 'sfolder')"
    )
    with sqlite3.connect(rig.settings.database) as connection:
        connection.execute(update)
    connection.close()
    with monkeypatch.context() as patch:
        patch.setattr(FakeRuntime, "find", AsyncMock(side_effect=HostNotReady("under another accelerator")))
        with pytest.raises(HostNotReady, match="another accelerator"):
            await Node(rig.settings).start()
    assert litter.exists()
    with sqlite3.connect(rig.settings.database) as connection:
        (state,) = connection.execute("SELECT record ->> '$.state' FROM sandboxes").fetchone()
    connection.close()
    assert state == "running"


async def test_two_servers_cannot_share_a_home(tmp_path: Path) -> None:
    rig = await _started(tmp_path)
    with pytest.raises(HostNotReady, match="another server"):
        await Node(fake_settings(tmp_path)).start()
    await rig.node.stop()


async def test_a_missing_layer_is_a_clear_error_and_keeps_the_record(tmp_path: Path) -> None:
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(sandbox.id)
    await rig.node.stop()
    rig = await _started(tmp_path)
    capture = await rig.node.captures.get((await rig.node.sandboxes.get(sandbox.id)).capture_id)
    content = capture.layers[0].path.read_bytes()
    capture.layers[0].path.unlink()
    with pytest.raises(Exception, match="missing"):
        await rig.node.sandboxes.connect(sandbox.id, 60)
    capture.layers[0].path.write_bytes(content)
    await rig.node.sandboxes.connect(sandbox.id, 60)
    await rig.node.stop()


async def test_a_database_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.joinpath("aenv.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(HostNotReady, match=r"aenv\.db"):
        await Node(fake_settings(tmp_path)).start()


async def test_requests_while_stopping_are_refused(tmp_path: Path) -> None:
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    stopping = asyncio.ensure_future(rig.node.stop())

    async def is_stopping() -> bool:
        return rig.node.sandboxes._core.closing

    await eventually(is_stopping)
    with pytest.raises(ShuttingDown):
        await rig.node.sandboxes.kill(sandbox.id)
    await stopping


async def test_an_agent_that_never_answers_is_given_up_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core_module, "ATTEMPTS", 2)
    monkeypatch.setattr(core_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(capturing, "FREEZE_TIMEOUT", 0.05)
    rig = await _started(tmp_path)
    sandbox = await rig.create()
    core = rig.node.sandboxes._core
    machine = core.live.machine(sandbox.id)
    assert machine is not None
    guest = (await rig.instance(sandbox.id)).guest
    guest.responsive.clear()
    await core.release_later(sandbox.id, machine)
    assert "the agent isn't asked any more" in capsys.readouterr().out
    guest.responsive.set()
    await core.release_later(sandbox.id, machine)
    assert "isn't asked any more" not in capsys.readouterr().out
    await rig.node.stop()
