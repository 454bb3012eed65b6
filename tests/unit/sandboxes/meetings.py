"""What requests that meet come to: the one table that the tests try and `docs/lifecycle.md` shows.

Requests on one sandbox take turns in the order in which they came. So the outcome of a pair is that of the
second in the state that the first leads to, but for the few that `JOINS` and `KEEPS_ALIVE` name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Found(StrEnum):
    """How a request finds its sandbox when its turn comes."""

    RUNNING = "running"
    PAUSED = "paused"
    DISK_ONLY = "paused without memory"
    GONE = "gone"


class Request(StrEnum):
    """What can meet."""

    CREATE = "create with the same key"
    PAUSE = "pause"
    PAUSE_DISK = "pause without memory"
    RESUME = "resume"
    CONNECT = "connect"
    KILL = "kill"
    FORK = "fork"
    SNAPSHOT = "snapshot"
    ROLLBACK = "rollback"
    TIMEOUT = "timeout"
    REFRESH = "refreshes"
    EXPIRY = "deadline, to pause"
    EXPIRY_KILL = "deadline, to delete"
    TRAFFIC = "traffic, `autoResume`"


@dataclass(frozen=True)
class Outcome:
    """What the caller gets, by the API's status, and how the sandbox is then."""

    answer: str
    then: Found


def _row(running: Outcome, paused: Outcome, disk_only: Outcome, gone: Outcome) -> dict[Found, Outcome]:
    return dict(zip(Found, (running, paused, disk_only, gone), strict=True))


def _running_only(answer: str, then: Found, refusal: str) -> dict[Found, Outcome]:
    """A request that needs a running sandbox."""
    refused = Outcome(refusal, Found.PAUSED), Outcome(refusal, Found.DISK_ONLY)
    return _row(Outcome(answer, then), *refused, Outcome("404", Found.GONE))


def _at_the_deadline(then: Found) -> dict[Found, Outcome]:
    nothing = {found: Outcome("nothing", found) for found in Found}
    return {**nothing, Found.RUNNING: Outcome("happens", then)}


def _wakes(running: str, paused: str) -> dict[Found, Outcome]:
    woken = Outcome(paused, Found.RUNNING)
    return _row(Outcome(running, Found.RUNNING), woken, woken, Outcome("404", Found.GONE))


_DELETED = Outcome("204", Found.GONE)

TURNS: dict[Request, dict[Found, Outcome]] = {
    Request.CREATE: {found: Outcome("the first 201", found) for found in Found},
    Request.PAUSE: _running_only("204", Found.PAUSED, "409"),
    Request.PAUSE_DISK: _running_only("204", Found.DISK_ONLY, "409"),
    Request.RESUME: _wakes("409", "201"),
    Request.CONNECT: _wakes("200", "201"),
    Request.KILL: _row(_DELETED, _DELETED, _DELETED, Outcome("404", Found.GONE)),
    Request.FORK: _running_only("201", Found.RUNNING, "409"),
    Request.SNAPSHOT: _running_only("201", Found.RUNNING, "404"),
    Request.ROLLBACK: _running_only("204", Found.RUNNING, "409"),
    Request.TIMEOUT: _running_only("204", Found.RUNNING, "404"),
    Request.REFRESH: _running_only("204", Found.RUNNING, "404"),
    Request.EXPIRY: _at_the_deadline(Found.PAUSED),
    Request.EXPIRY_KILL: _at_the_deadline(Found.GONE),
    Request.TRAFFIC: _row(
        Outcome("served", Found.RUNNING),
        Outcome("served", Found.RUNNING),
        Outcome("404", Found.DISK_ONLY),
        Outcome("404", Found.GONE),
    ),
}

JOINS = {
    (Request.PAUSE, Request.PAUSE),
    (Request.PAUSE_DISK, Request.PAUSE_DISK),
    (Request.EXPIRY, Request.PAUSE),
}
"""The second doesn't take a turn: it waits for the first and gets the answer of a success."""

KEEPS_ALIVE = {
    Request.CREATE,
    Request.RESUME,
    Request.CONNECT,
    Request.TIMEOUT,
    Request.REFRESH,
    Request.TRAFFIC,
}
"""After these a deadline that had passed has not any more: traffic counts if it wakes the sandbox."""

BEFORE = {
    Request.CREATE: Found.GONE,
    Request.RESUME: Found.PAUSED,
    Request.CONNECT: Found.PAUSED,
    Request.TRAFFIC: Found.PAUSED,
}
"""How the first of a pair finds the sandbox, unless it runs."""


def alone(request: Request) -> Outcome:
    """What comes of the first of a pair."""
    if request is Request.CREATE:
        return Outcome("201", Found.RUNNING)
    return TURNS[request][BEFORE.get(request, Found.RUNNING)]


def meeting(first: Request, second: Request) -> Outcome:
    """What comes of `second`, which arrives while `first` is under way."""
    found = alone(first).then
    if (first, second) in JOINS:
        return Outcome(alone(second).answer, found)
    if (first, second) == (Request.CREATE, Request.ROLLBACK):
        return Outcome("404", found)  # there can be no snapshot of it yet
    if second in {Request.EXPIRY, Request.EXPIRY_KILL} and first in KEEPS_ALIVE:
        return Outcome("nothing", found)
    return TURNS[second][found]


def table() -> str:
    """The table as the document shows it."""
    lines = [f"| on its turn | {' | '.join(f'finds it {found}' for found in Found)} |", "|---" * 5 + "|"]
    for request, outcomes in TURNS.items():
        cells = []
        for found, outcome in outcomes.items():
            changed = f": then {outcome.then}" if outcome.then is not found else ""
            cells.append(f"{outcome.answer}{changed}")
        lines.append(f"| {request} | {' | '.join(cells)} |")
    return "\n".join(lines)
