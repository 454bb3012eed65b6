"""Whether a node agrees with the model, and has nothing that belongs to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aenv.node import Node
from aenv.runtimes.base import Capture
from aenv.sandboxes import store
from aenv.sandboxes.models import Sandbox, SandboxFilter
from aenv.sandboxes.states import LIVE, TRANSITIONS, VISIBLE, State
from tests.lives.model import Life, Model
from tests.lives.world import World

GONE = "gone"

ALLOWED = (
    {(GONE, State.CREATING)}
    | {(source, t.via) for t in TRANSITIONS.values() for source in t.sources}
    | {(t.via, end or GONE) for t in TRANSITIONS.values() for end in (t.done, t.failed)}
    | {(state, State.LOST) for state in LIVE}
    | {(State.LOST, GONE)}
)
"""From which state to which a record may go: nothing but the table says so."""


@dataclass(frozen=True)
class Facts:
    """What a node has when nothing is under way."""

    rows: Mapping[str, Sandbox]
    moves: set[tuple[str, str]]
    listed: set[str]
    count: int
    running: int
    live: set[str]
    snapshots: Mapping[str, tuple[str | None, Capture]]
    """The source and the capture of each."""
    captures: Mapping[str, Capture]
    """Of paused sandboxes."""
    kept: set[str]
    """Names of the instances of paused sandboxes whose VM is kept."""
    workspace: set[str]
    named: set[str]
    """The files that captures name, relative to the home; not the root file system, which is no capture's."""
    files: set[str]
    """The files that are there."""
    empty: list[Path]
    """Folders of captures without a file."""


async def gather(node: Node) -> Facts:
    """The facts, once nothing is under way."""
    core = node.sandboxes._core
    await core.tasks.drain()
    await node.captures.collect()
    rows = {each.id: each for each in await core.database.run(lambda c: store.in_states(c, frozenset(State)))}
    query = SandboxFilter(states=VISIBLE, limit=1000)
    snapshots = [
        (await node.templates.find(each.snapshot_id)) for each in await node.templates.list(snapshots=True)
    ]
    settings = node._settings
    named = await core.database.run(
        lambda c: [row[0] for row in c.execute("SELECT path FROM capture_layers")]
    )
    return Facts(
        rows=rows,
        moves=await core.database.run(lambda c: set(c.execute("SELECT * FROM moves").fetchall())),
        listed={each.id for each in await node.sandboxes.list(query)},
        count=await node.sandboxes.count(query),
        running=(await node.sandboxes.census()).sandboxes[State.RUNNING],
        live=set(core.live),
        snapshots={
            each.snapshot_id: (
                each.build.source_sandbox_id,
                await node.captures.get(each.build.capture_id),
            )
            for each in snapshots
        },
        captures={
            each.id: await node.captures.get(each.capture_id)
            for each in rows.values()
            if each.state is State.PAUSED
        },
        kept={machine.id for machine in node.starter.stopped._machines.values()},
        workspace={path.name for path in settings.workspace_dir.iterdir()},
        named={path for path in named if path.startswith(f"{settings.captures_dir.name}/")},
        files={
            str(path.relative_to(settings.home))
            for path in settings.captures_dir.rglob("*")
            if path.is_file()
        },
        empty=[folder for folder in settings.captures_dir.iterdir() if not any(folder.iterdir())],
    )


def check(world: World, model: Model) -> None:
    """Everything that must hold between two requests."""
    facts = world.call(gather)
    _check_moves(facts)
    _check_states(facts, model)
    _check_lists(facts, model)
    _check_contents(world, facts, model)
    _check_nothing_leaks(world, facts)


def _check_moves(facts: Facts) -> None:
    moves = {(source, target) for source, target in facts.moves if source != target}
    assert moves <= ALLOWED, f"not in the table: {moves - ALLOWED}"


def _check_states(facts: Facts, model: Model) -> None:
    rows = facts.rows
    expected = dict.fromkeys(model.lost, State.LOST)
    for sandbox_id, box in model.boxes.items():
        expected[sandbox_id] = State.RUNNING if box.life is Life.RUNNING else State.PAUSED
    found = {row.id: row.state for row in rows.values()}
    reasons = {row.id: row.reason for row in rows.values() if row.reason}
    assert found == expected, f"{found} instead of {expected}; {reasons}"
    assert all(rows[sandbox_id].reason for sandbox_id in model.lost), reasons
    for sandbox_id in model.in_life(Life.PAUSED, Life.DISK_ONLY):
        full = model.boxes[sandbox_id].life is Life.PAUSED
        assert (rows[sandbox_id].pause_mode == "full") is full, rows[sandbox_id]


def _check_lists(facts: Facts, model: Model) -> None:
    running = set(model.in_life(Life.RUNNING))
    assert facts.listed == set(model.boxes), f"{facts.listed} are listed, there are {set(model.boxes)}"
    assert (facts.count, facts.running) == (len(model.boxes), len(running)), (facts.count, facts.running)
    assert facts.live == running, f"{facts.live} are live instead of {running}"
    assert set(facts.snapshots) == set(model.snaps), f"snapshots {set(facts.snapshots)}"


def _check_contents(world: World, facts: Facts, model: Model) -> None:
    """What a client wrote before something was acknowledged is there."""
    for sandbox_id, box in model.boxes.items():
        running = box.life is Life.RUNNING
        seen = world.look(sandbox_id) if running else world.look_into(facts.captures[sandbox_id])
        if seen is not None:
            box.content.check(seen, f"sandbox {sandbox_id}")
    for name, snap in model.snaps.items():
        source, capture = facts.snapshots[name]
        assert source == snap.source, f"snapshot {name} is of {source}, not of {snap.source}"
        seen = world.look_into(capture)
        if seen is not None:
            snap.content.check(seen, f"snapshot {name}")


def _check_nothing_leaks(world: World, facts: Facts) -> None:
    wanted = {str(row.instance_id) for row in facts.rows.values() if row.state is State.RUNNING}
    wanted |= facts.kept
    assert facts.workspace == wanted, f"folders {facts.workspace} of instances {wanted}"
    assert facts.files == facts.named, f"without a name {facts.files - facts.named}, or a file {facts.named}"
    assert not facts.empty, facts.empty
    world.check_leaks(wanted)
