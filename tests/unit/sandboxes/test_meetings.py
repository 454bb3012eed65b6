"""Every pair of requests on one sandbox: the second arrives while the first is under way."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from aenv.database import Database
from aenv.errors import AenvError
from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.models import CreateSandbox, Sandbox, SandboxFilter
from aenv.sandboxes.states import TRANSITIONAL, VISIBLE, State
from tests.server import ROOT
from tests.unit.sandboxes import meetings
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings
from tests.unit.sandboxes.meetings import Found, Request

T = TypeVar("T")

LONG = 600.0
"""A timeout that doesn't run out here, seconds."""

HELD_AT = {
    Request.CREATE: "thaw",
    Request.PAUSE: "capture",
    Request.PAUSE_DISK: "capture",
    Request.RESUME: "thaw",
    Request.CONNECT: "thaw",
    Request.KILL: "stop",
    Request.FORK: "capture",
    Request.SNAPSHOT: "capture",
    Request.ROLLBACK: "freeze",
    Request.EXPIRY: "capture",
    Request.EXPIRY_KILL: "stop",
    Request.TRAFFIC: "thaw",
}
"""What of the runtime the first waits for in the middle of its work; the others wait for the database."""

SUCCESS: dict[Request, str | None] = {
    Request.CREATE: "201",
    Request.PAUSE: "204",
    Request.PAUSE_DISK: "204",
    Request.RESUME: "201",
    Request.KILL: "204",
    Request.FORK: "201",
    Request.SNAPSHOT: "201",
    Request.ROLLBACK: "204",
    Request.TIMEOUT: "204",
    Request.REFRESH: "204",
    Request.TRAFFIC: "served",
    Request.EXPIRY: None,
    Request.EXPIRY_KILL: None,
}
"""The API's answers to what succeeds, but for connect, which has two."""

_is_first: contextvars.ContextVar[bool] = contextvars.ContextVar("is_first", default=False)


class Pair:
    """One sandbox, and what two requests on it come to."""

    def __init__(self, rig: Rig, first: Request, second: Request) -> None:
        self._rig = rig
        self._sandboxes = rig.node.sandboxes
        self._core = rig.node.sandboxes._core
        self._kinds = first, second
        self._request = CreateSandbox(
            "base", LONG, auto_pause=Request.EXPIRY_KILL not in self._kinds, auto_resume=True
        )
        self._id = ""
        self._snapshot = "none"

    async def prepare(self) -> None:
        """Bring the sandbox into the state in which the first finds it."""
        before = meetings.BEFORE.get(self._kinds[0], Found.RUNNING)
        if before is Found.GONE:
            return
        self._id = (await self._sandboxes.create(self._request, self._key)).id
        if Request.ROLLBACK in self._kinds:
            self._snapshot = (await self._sandboxes.snapshot(self._id)).snapshot_id
        if before is Found.PAUSED:
            await self._sandboxes.pause(self._id)

    @property
    def _key(self) -> str:
        return f"{self._kinds[0]} {self._kinds[1]}"

    async def meet(self) -> tuple[str | None, str | None, Found]:
        """What each of them answers, and how the sandbox is then."""
        first, second = self._kinds

        async def is_under_way() -> bool:
            if first in HELD_AT:
                return bool(await self._core.database.run(lambda c: store.in_states(c, TRANSITIONAL)))
            return self._database.reached

        async def waits() -> bool:
            users = self._core.locks._locks[self._id][1]
            return met.done() or users > 1 or self._kinds in meetings.JOINS or second is Request.CREATE

        with self._rig.runtime.hold(HELD_AT[first]) if first in HELD_AT else self._database.hold():
            _is_first.set(True)
            begun = asyncio.ensure_future(self._answer(first))
            _is_first.set(False)
            await eventually(is_under_way, 20)
            if first is Request.CREATE:
                (row,) = await self._core.database.run(lambda c: store.in_states(c, {State.CREATING}))
                self._id = row.id
            met = asyncio.ensure_future(self._answer(second))
            await eventually(waits, 20)
            for _ in range(10):
                await asyncio.sleep(0)
        answers = await begun, await met
        await self._core.tasks.drain()
        return *answers, await self._found()

    @property
    def _database(self) -> HeldDatabase:
        assert isinstance(self._core.database, HeldDatabase)
        return self._core.database

    async def _answer(self, request: Request) -> str | None:
        """The API's answer; None for a deadline, of which nobody hears."""
        known = self._id
        try:
            result = await self._work()[request]()
        except AenvError as error:
            return str(error.status)
        if isinstance(result, Sandbox) and request is Request.CREATE and known:
            return "the first 201" if result.id == known else "another sandbox"
        if isinstance(result, tuple):
            return "201" if result[1] else "200"
        return SUCCESS[request]

    def _work(self) -> dict[Request, Callable[[], Awaitable[object]]]:
        sandboxes, sandbox_id = self._sandboxes, self._id
        return {
            Request.CREATE: lambda: sandboxes.create(self._request, self._key),
            Request.PAUSE: lambda: sandboxes.pause(sandbox_id),
            Request.PAUSE_DISK: lambda: sandboxes.pause(sandbox_id, memory=False),
            Request.RESUME: lambda: sandboxes.resume(sandbox_id, LONG),
            Request.CONNECT: lambda: sandboxes.connect(sandbox_id, LONG),
            Request.KILL: lambda: sandboxes.kill(sandbox_id),
            Request.FORK: lambda: sandboxes.fork(sandbox_id, 1),
            Request.SNAPSHOT: lambda: sandboxes.snapshot(sandbox_id),
            Request.ROLLBACK: lambda: sandboxes.roll_back(sandbox_id, self._snapshot),
            Request.TIMEOUT: lambda: sandboxes.set_timeout(sandbox_id, LONG),
            Request.REFRESH: lambda: sandboxes.refresh(sandbox_id, 2 * LONG),
            Request.TRAFFIC: lambda: sandboxes.endpoint(sandbox_id),
            Request.EXPIRY: self._expire,
            Request.EXPIRY_KILL: self._expire,
        }

    async def _expire(self) -> None:
        """Let the deadline pass now."""
        await self._core.database.run(
            lambda c: store.change(c, self._id, frozenset(State), end_at=time.time())
        )
        await self._sandboxes._expire(self._id)

    async def _found(self) -> Found:
        row = await self._core.database.run(lambda c: store.get(c, self._id))
        if row is None:
            return Found.GONE
        if row.state is State.PAUSED:
            return Found.PAUSED if row.pause_mode == "full" else Found.DISK_ONLY
        assert row.state is State.RUNNING
        return Found.RUNNING

    async def end(self) -> None:
        """Delete what the pair has left."""
        for each in await self._sandboxes.list(SandboxFilter(states=VISIBLE)):
            await self._sandboxes.kill(each.id)


class HeldDatabase(Database):
    """A database at which the first of a pair waits, once."""

    _held: asyncio.Event | None = None
    reached = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the first wait before its first transaction until the block ends."""
        held = self._held = asyncio.Event()
        self.reached = False
        try:
            yield
        finally:
            self._held = None
            held.set()

    async def run(self, transaction: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction, when the first is free to go on."""
        if _is_first.get() and self._held is not None:
            self.reached = True
            await self._held.wait()
        return await super().run(transaction)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A node without spare VMs: they would wait in the same places."""
    monkeypatch.setattr("aenv.node.Database", HeldDatabase)
    settings = fake_settings(tmp_path, hot_vms=0, bare_vms=0, metrics_interval=0)
    node = Node(settings)
    await node.start()
    yield Rig(node, settings)
    await node.stop()


def _pairs(first: Request) -> list[Request]:
    """What it may meet: a sandbox has one kind of deadline."""
    deadlines = {Request.EXPIRY, Request.EXPIRY_KILL}
    return [second for second in Request if first == second or not {first, second} >= deadlines]


@pytest.mark.parametrize("first", Request)
@pytest.mark.timeout(300)
async def test_every_pair_has_one_outcome(rig: Rig, first: Request, subtests: pytest.Subtests) -> None:
    for second in _pairs(first):
        with subtests.test(first=str(first), second=str(second)):
            pair = Pair(rig, first, second)
            await pair.prepare()
            answer, met, found = await pair.meet()
            await pair.end()
            assert answer in {None, meetings.alone(first).answer}
            expected = meetings.meeting(first, second)
            assert (met or expected.answer, found) == (expected.answer, expected.then)


def test_the_document_shows_the_table() -> None:
    document = (ROOT / "docs" / "lifecycle.md").read_text()
    assert meetings.table() in document, f"docs/lifecycle.md, Turns, must show:\n{meetings.table()}"
