"""Whether a node on the fake runtime agrees with the model, and has nothing that belongs to nobody."""

from __future__ import annotations

import contextvars
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from aenv.database import Database
from aenv.errors import StorageFailure
from aenv.runtimes.base import Capture
from aenv.sandboxes import store
from aenv.sandboxes.models import Sandbox, SandboxFilter
from aenv.sandboxes.states import LIVE, TRANSITIONS, VISIBLE, State
from tests.unit.sandboxes.conftest import Rig
from tests.unit.sandboxes.model import Content, Life, Model

T = TypeVar("T")

GONE = "gone"

ALLOWED = (
    {(GONE, State.CREATING)}
    | {(source, t.via) for t in TRANSITIONS.values() for source in t.sources}
    | {(t.via, end or GONE) for t in TRANSITIONS.values() for end in (t.done, t.failed)}
    | {(state, State.LOST) for state in LIVE}
    | {(State.LOST, GONE)}
)
"""From which state to which a record may go: nothing but the table says so."""

_NOTE_MOVES = """
CREATE TABLE IF NOT EXISTS moves (source TEXT, target TEXT)

CREATE TRIGGER IF NOT EXISTS inserted AFTER INSERT ON sandboxes
    BEGIN INSERT INTO moves VALUES ('gone', NEW.record ->> '$.state'); END

CREATE TRIGGER IF NOT EXISTS updated AFTER UPDATE ON sandboxes
    BEGIN INSERT INTO moves VALUES (OLD.record ->> '$.state', NEW.record ->> '$.state'); END

CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON sandboxes
    BEGIN INSERT INTO moves VALUES (OLD.record ->> '$.state', 'gone'); END
"""

failing_transaction: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar(
    "failing_transaction", default=None
)
"""Which of the next transactions of this context fails, counted down in place."""


class FailingDatabase(Database):
    """A database that notes every change of a state, and that can be told to be full for a moment."""

    @classmethod
    async def open(cls, path: Path) -> Database:
        """Open it and set the triggers."""
        database = await super().open(path)
        await database.run(_watch)
        return database

    async def run(self, transaction: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction, unless it is the one that fails."""
        if (left := failing_transaction.get()) is not None:
            left[0] -= 1
            if left[0] == 0:
                raise StorageFailure("the server's database: disk is full")
        return await super().run(transaction)


def _watch(connection: sqlite3.Connection) -> None:
    for statement in _NOTE_MOVES.split("\n\n"):
        connection.execute(statement)


async def check(rig: Rig, model: Model) -> None:
    """Everything that must hold between two requests."""
    await rig.node.sandboxes._core.tasks.drain()
    rows = {row.id: row for row in await _rows(rig, frozenset(State))}
    await _check_moves(rig)
    _check_states(rows, model)
    await _check_lists(rig, model)
    await _check_contents(rig, rows, model)
    await _check_nothing_leaks(rig, rows)


async def _rows(rig: Rig, states: frozenset[State]) -> list[Sandbox]:
    return await rig.node.captures._database.run(lambda c: store.in_states(c, states))


async def _check_moves(rig: Rig) -> None:
    found = await rig.node.captures._database.run(lambda c: c.execute("SELECT * FROM moves").fetchall())
    moves = {(source, target) for source, target in found if source != target}
    assert moves <= ALLOWED, f"not in the table: {moves - ALLOWED}"


def _check_states(rows: dict[str, Sandbox], model: Model) -> None:
    expected = dict.fromkeys(model.lost, State.LOST)
    for sandbox_id, box in model.boxes.items():
        expected[sandbox_id] = State.RUNNING if box.life is Life.RUNNING else State.PAUSED
    found = {row.id: row.state for row in rows.values()}
    reasons = {row.id: row.reason for row in rows.values() if row.reason}
    assert found == expected, f"{found} instead of {expected}; {reasons}"
    assert all(rows[sandbox_id].reason for sandbox_id in model.lost)
    for sandbox_id in model.in_life(Life.PAUSED, Life.DISK_ONLY):
        assert (rows[sandbox_id].pause_mode == "full") is (model.boxes[sandbox_id].life is Life.PAUSED)


async def _check_lists(rig: Rig, model: Model) -> None:
    query = SandboxFilter(states=VISIBLE, limit=1000)
    listed = await rig.node.sandboxes.list(query)
    assert {sandbox.id for sandbox in listed} == set(model.boxes)
    assert await rig.node.sandboxes.count(query) == len(model.boxes)
    census = (await rig.node.sandboxes.census()).sandboxes
    assert census[State.RUNNING] == len(model.in_life(Life.RUNNING))
    assert set(rig.node.sandboxes._core.live) == set(model.in_life(Life.RUNNING))
    snapshots = await rig.node.templates.list(snapshots=True)
    assert {each.snapshot_id for each in snapshots} == set(model.snaps)


async def _check_contents(rig: Rig, rows: dict[str, Sandbox], model: Model) -> None:
    """What a client wrote before something was acknowledged is there."""
    for sandbox_id, box in model.boxes.items():
        row = rows[sandbox_id]
        if box.life is Life.RUNNING:
            guest = rig.runtime.instances[str(row.instance_id)].guest
            found = _content(guest.memory, guest.disk)
            assert guest.memory.get("frozen") is not True
            assert guest.identity["sandboxId"] == sandbox_id
        else:
            found = _captured(await rig.node.captures.get(row.capture_id))
        assert found == box.content, sandbox_id
    for name, snap in model.snaps.items():
        build = (await rig.node.templates.find(name)).build
        assert build.source_sandbox_id == snap.source
        assert _captured(await rig.node.captures.get(build.capture_id)) == snap.content, name


def _content(memory: dict[str, Any], disk: dict[str, Any]) -> Content:
    kept = {key: value for key, value in memory.items() if key.startswith("key")}
    return Content(kept, dict(memory.get("unwritten", {})), dict(disk))


def _captured(capture: Capture) -> Content:
    layers = {layer.role: json.loads(layer.path.read_text()) for layer in capture.layers}
    return _content(layers.get("memory", {}), layers["disk"])


async def _check_nothing_leaks(rig: Rig, rows: dict[str, Sandbox]) -> None:
    await rig.node.captures.collect()
    stopped = rig.node.starter.stopped._machines.values()
    wanted = {row.instance_id for row in rows.values() if row.state is State.RUNNING}
    wanted |= {machine.id for machine in stopped}
    assert set(rig.runtime.instances) == wanted
    assert {path.name for path in rig.settings.workspace_dir.iterdir()} == wanted
    assert set(rig.network.in_use) == {each.place.slot.index for each in rig.runtime.instances.values()}
    named = await rig.node.captures._database.run(
        lambda c: {row[0] for row in c.execute("SELECT path FROM capture_layers")}
    )
    files = {path for path in rig.settings.captures_dir.rglob("*") if path.is_file()}
    assert {str(path.relative_to(rig.settings.home)) for path in files} == named
    assert all(any(folder.iterdir()) for folder in rig.settings.captures_dir.iterdir())
