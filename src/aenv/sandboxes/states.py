"""The life of a sandbox: which operation is allowed in which state. The only place that knows.

A sandbox is *gone* when it has no row any more; `gone` is therefore no state but the absence of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of a sandbox's row."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    SNAPSHOTTING = "snapshotting"
    FORKING = "forking"
    ROLLING_BACK = "rolling_back"
    KILLING = "killing"
    LOST = "lost"


class Operation(StrEnum):
    """What can be done to a sandbox."""

    CREATE = "create"
    PAUSE = "pause"
    RESUME = "resume"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    ROLLBACK = "rollback"
    KILL = "kill"


@dataclass(frozen=True)
class Transition:
    """One operation: where it may start, the state while it is under way, and its endings.

    `None` as an ending means the row is gone. `failed` is where a failure leads when the sandbox is as
    it was before; a failure that loses the VM leads to `lost` from anywhere.
    """

    operation: Operation
    sources: frozenset[State]
    via: State
    done: State | None
    failed: State | None


_NEW: frozenset[State] = frozenset()

TRANSITIONS: dict[Operation, Transition] = {
    t.operation: t
    for t in (
        Transition(Operation.CREATE, _NEW, State.CREATING, State.RUNNING, None),
        Transition(Operation.PAUSE, frozenset({State.RUNNING}), State.PAUSING, State.PAUSED, State.RUNNING),
        Transition(Operation.RESUME, frozenset({State.PAUSED}), State.RESUMING, State.RUNNING, State.PAUSED),
        Transition(
            Operation.SNAPSHOT, frozenset({State.RUNNING}), State.SNAPSHOTTING, State.RUNNING, State.RUNNING
        ),
        Transition(Operation.FORK, frozenset({State.RUNNING}), State.FORKING, State.RUNNING, State.RUNNING),
        Transition(
            Operation.ROLLBACK, frozenset({State.RUNNING}), State.ROLLING_BACK, State.RUNNING, State.RUNNING
        ),
        Transition(Operation.KILL, frozenset({State.RUNNING, State.PAUSED}), State.KILLING, None, State.LOST),
    )
}

TRANSITIONAL = frozenset(t.via for t in TRANSITIONS.values())
"""States in which an operation is under way; every one ends by itself."""

STABLE = frozenset(State) - TRANSITIONAL

LIVE = frozenset({State.RUNNING, State.PAUSING, State.SNAPSHOTTING, State.FORKING, State.ROLLING_BACK})
"""States in which a VM belongs to the sandbox; its death makes the sandbox lost."""

VISIBLE = frozenset(State) - {State.LOST, State.KILLING, State.CREATING}
"""States that the E2B routes show."""


def public_state(state: State) -> str:
    """What the E2B API calls a state: `running` or `paused`.

    A pause under way counts as paused and a resume as running: what the caller will find when it ends.
    """
    return "paused" if state in {State.PAUSED, State.PAUSING} else "running"


def _check() -> None:
    """Check the table when the module is imported: a hole in it is a programming error."""
    if set(TRANSITIONS) != set(Operation):
        raise AssertionError("an operation has no transition")
    vias = [t.via for t in TRANSITIONS.values()]
    if len(set(vias)) != len(vias):
        raise AssertionError("two operations share a state")
    for t in TRANSITIONS.values():
        ends = {end for end in (t.done, t.failed) if end is not None}
        if not (t.sources <= STABLE and ends <= STABLE):
            raise AssertionError(f"{t.operation} starts or ends in a state that doesn't last")
    reachable = {t.done for t in TRANSITIONS.values()} | {State.LOST}
    if not reachable >= STABLE:
        raise AssertionError("a state can't be reached")


_check()
