"""Sandboxes that are led through operations together, and the bare engine that does the same after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aenv.bench import seen
from aenv.bench.home import Home
from aenv.bench.pace import Pace
from aenv.bench.reference import run_engine
from aenv.bench.rows import Report, Row
from aenv.bench.server import Clock, Server, first_command
from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient
from aenv.runtimes.base import Capture

QUIET_SECONDS = 2.0
"""Rest between operations: spare VMs are made in this time, and what goes on after an answer ends."""

Compared = Mapping[tuple[str, str | None], tuple[str, str]]

ENDS = ("running", "answering", "usable")
"""What a start is timed to: its vCPUs run, its agent has its identity, a first command's output is here."""


def start_rows(report: Report, name: str, targets: tuple[str, str, str]) -> None:
    """A row for each end."""
    for end, target in zip(ENDS, targets, strict=True):
        report.row(name, end, target=target)


@dataclass
class Life:
    """One sandbox: its record as the API gave it, empty before it was created and after it was deleted."""

    server: Server
    sandbox: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The sandbox's id. Raises RuntimeFailure if there is none."""
        if not self.sandbox:
            raise RuntimeFailure("the sandbox didn't start")
        return str(self.sandbox["sandboxID"])

    @property
    def guest(self) -> EnvdClient:
        """A client of its agent, through the server."""
        return self.server.guest(self.sandbox)


@dataclass(frozen=True)
class Place:
    """Where a batch is measured, and at what pace."""

    server: Server
    home: Home
    report: Report
    pace: Pace


class Batch:
    """`size` sandboxes. One with which something fails takes no further part, and counts as failed."""

    def __init__(self, place: Place, size: int) -> None:
        self.server = place.server
        self.home = place.home
        self._report = place.report
        self._pace = place.pace
        self._size = size
        self._all = [Life(place.server) for _ in range(size)]
        self.lives = list(self._all)

    def row(self, name: str, end: str | None = None) -> Row:
        """The row of that name, made before."""
        return next(row for row in self._report.rows if (row.name, row.end) == (name, end))

    async def each(self, names: Sequence[str], operation: Callable[[Life], Awaitable[None]]) -> None:
        """Do `operation`, which fills the rows with these names, with all that are left, at the pace."""
        rows = [row for row in self._report.rows if row.name in names]
        for row in rows:
            row.n += self._size - len(self.lives)

        async def attempt(life: Life) -> bool:
            with self._report.attempt(names[0] if names else operation.__name__, *rows):
                await operation(life)
                return True
            return False

        done = await self._pace.each(self.lives, attempt)
        self.lives = [life for life, well in zip(self.lives, done, strict=True) if well]

    async def start(self, name: str, life: Life, path: str, **body: Any) -> None:
        """A request that lets the sandbox run, and a first command; fills the rows of all three ends."""
        clock = Clock()
        life.sandbox, told = await self.server.timed_call("POST", path, {**body, "timeout": 3600})
        answering = clock.ms()
        usable = await first_command(life.guest, clock)
        for end, value in zip(ENDS, (told["running"], answering, usable), strict=True):
            self.row(name, end).add(value)

    async def timed(self, name: str, life: Life, method: str, path: str = "") -> dict[str, float]:
        """A request for the sandbox; what the server told of its stages."""
        clock = Clock()
        body: dict[str, Any] | None = {} if method == "POST" else None
        _, told = await self.server.timed_call(method, f"/sandboxes/{life.id}{path}", body)
        self.row(name).add(clock.ms())
        return told

    async def watch(self) -> None:
        """Let every guest look at its clock from now on."""
        await self.each((), lambda life: seen.watch(life.guest))

    async def note_seen(self, name: str) -> None:
        """Fill the row with what the guests saw since `watch`."""

        async def note(life: Life) -> None:
            self.row(name).add(await seen.longest(life.guest))

        await self.each((name,), note)

    async def engine(
        self,
        capture: Capture,
        steps: Sequence[str],
        compared: Compared,
        **plan: Any,
    ) -> None:
        """Let as many VMs by hand do `steps`. `compared` maps a row to a step and one of its figures.

        `plan` are further fields of the engine's `Plan`.
        """
        with self._report.attempt("the bare engine"):
            await asyncio.sleep(QUIET_SECONDS)
            size = {"count": self._size, "gap": self._pace.gap}
            found = await run_engine(self.home.folder, capture, steps, **size, **plan)
            for (name, end), (step, figure) in compared.items():
                self.row(name, end).reference += [vm[step][0][figure] for vm in found]

    async def end(self) -> None:
        """Delete what is left, of those that failed too."""
        await self.delete([life for life in self._all if life.sandbox])

    async def delete(self, lives: Sequence[Life]) -> None:
        """Delete sandboxes. A failure is told."""

        async def delete(life: Life) -> None:
            with self._report.attempt("cleaning up"):
                await self.server.call("DELETE", f"/sandboxes/{life.id}")

        await asyncio.gather(*map(delete, lives))
