"""Random operations, failures, crashes and restarts, against a model of what must be true after each.

A failing run prints the steps that led to it. `AENV_STEPS` lengthens the long one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aenv.errors import AenvError, Conflict, RuntimeFailure, SandboxNotFound
from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.sandboxes.states import State
from tests.unit.sandboxes.audit import FailingDatabase, check, failing_transaction
from tests.unit.sandboxes.conftest import Rig, fake_settings
from tests.unit.sandboxes.crash import crash
from tests.unit.sandboxes.model import Box, Content, Life, Model, Snap

T = TypeVar("T")

MOST = 6
"""Sandboxes at a time: enough to meet, few enough to be quick."""

LONG = 3600.0

WHICH = st.integers(0, 99)
"""Chooses among what there is."""

FAILURE = st.sampled_from([None] * 6 + ["freeze", "capture", "load", "thaw", "spawn", "boot"] + [1, 2, 3, 4])
"""What goes wrong below an operation, if anything: a step of the runtime, or the nth transaction."""


MEETING = st.lists(st.sampled_from(["pause", "connect", "fork", "kill"]), min_size=2, max_size=4)
"""Requests that come at once."""


class Lives(RuleBasedStateMachine):
    """One node on the fake runtime, and what is true of it."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("aenv.node.Database", FailingDatabase)
        self._folder = Path(tempfile.mkdtemp(prefix="aenv-lives-"))
        self._homes = 0
        self._loop = asyncio.Runner()
        self._model = Model()
        self._keys = 0
        node = Node(
            fake_settings(self._folder / "0", hot_vms=0, bare_vms=0, stopped_vms=2, metrics_interval=0)
        )
        self._run(node.start())
        self._rig = Rig(node, node._settings)

    def teardown(self) -> None:
        """End the node and remove its folders."""
        try:
            self._run(self._rig.node.stop())
        finally:
            self._loop.close()
            self._patch.undo()
            shutil.rmtree(self._folder)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    @property
    def _sandboxes(self) -> Any:
        return self._rig.node.sandboxes

    def _one(self, which: int, *lives: Life) -> str:
        found = self._model.in_life(*lives)
        return found[which % len(found)]

    def _has(self, *lives: Life) -> bool:
        return bool(self._model.in_life(*lives))

    def _attempt(self, work: Callable[[], Awaitable[T]], failure: str | int | None) -> T | None:
        """The result of an operation, or None if it failed as it was told to."""

        async def attempt() -> T | None:
            left = [failure if isinstance(failure, int) else 0]
            if isinstance(failure, int):
                failing_transaction.set(left)
            elif failure is not None:
                self._rig.runtime.order_failure(failure, RuntimeFailure("it was told to fail"))
            try:
                return await work()
            except AenvError:
                if failure is None:
                    raise
                return None
            finally:
                left[0] = 0  # what goes on in the background has the same list
                failing_transaction.set(None)
                await self._rig.node.sandboxes._core.tasks.drain()
                self._rig.runtime._failures.clear()

        return self._run(attempt())

    @invariant()
    def agrees(self) -> None:
        """The node is as the model."""
        self._run(check(self._rig, self._model))

    @precondition(lambda self: len(self._model.boxes) < MOST)
    @rule(which=WHICH, auto_pause=st.booleans(), failure=FAILURE)
    def create(self, which: int, auto_pause: bool, failure: str | int | None) -> None:
        """From the base template or a snapshot."""
        templates: Sequence[tuple[str, Snap | None]] = [("base", None), *self._model.snaps.items()]
        name, snap = templates[which % len(templates)]
        request = CreateSandbox(name, LONG, auto_pause=auto_pause, auto_resume=True)
        created = self._attempt(lambda: self._sandboxes.create(request), failure)
        if isinstance(created, Sandbox):
            content = Content() if snap is None else snap.content.copy()
            self._model.boxes[created.id] = Box(content, auto_pause)

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH, disk=st.booleans(), name=st.integers(0, 3))
    def write(self, which: int, disk: bool, name: int) -> None:
        """A value into memory or into a file."""
        sandbox_id = self._one(which, Life.RUNNING)
        self._keys += 1
        self._run(self._rig.put(sandbox_id, f"key{name}", self._keys, "disk" if disk else "memory"))
        content = self._model.boxes[sandbox_id].content
        (content.unwritten if disk else content.memory)[f"key{name}"] = self._keys

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def pause(self, which: int, memory: bool, failure: str | int | None) -> None:
        """With memory or without."""
        sandbox_id = self._one(which, Life.RUNNING)
        self._attempt(lambda: self._sandboxes.pause(sandbox_id, memory=memory), failure)
        box = self._model.boxes[sandbox_id]
        if self._state(sandbox_id) is State.PAUSED:
            box.pause(memory=memory)
        else:
            assert failure is not None
            self._synced(sandbox_id)

    def _state(self, sandbox_id: str) -> State:
        return State(self._run(self._rig.node.sandboxes.get(sandbox_id)).state)

    def _synced(self, sandbox_id: str) -> None:
        """A capture failed: its guest may have written its files to the disk before, which harms nobody."""
        instance = self._run(self._rig.instance(sandbox_id))
        if not instance.guest.memory["unwritten"]:
            self._model.boxes[sandbox_id].content.sync()

    @precondition(lambda self: self._has(Life.PAUSED, Life.DISK_ONLY))
    @rule(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def resume(self, which: int, memory: bool, failure: str | int | None) -> None:
        """Where it was, or by a boot."""
        sandbox_id = self._one(which, Life.PAUSED, Life.DISK_ONLY)
        self._attempt(lambda: self._sandboxes.connect(sandbox_id, LONG, memory=memory), failure)
        if self._state(sandbox_id) is State.RUNNING:
            self._model.boxes[sandbox_id].resume(memory=memory)
        else:
            assert failure is not None

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def snapshot(self, which: int, memory: bool, failure: str | int | None) -> None:
        """Kept after its source dies."""
        sandbox_id = self._one(which, Life.RUNNING)
        taken = self._attempt(lambda: self._sandboxes.snapshot(sandbox_id, memory=memory), failure)
        if taken is None:
            self._synced(sandbox_id)
            return
        content = self._model.boxes[sandbox_id].captured(memory=memory)
        self._model.snaps[taken.snapshot_id] = Snap(content, sandbox_id)

    @precondition(lambda self: self._model.own_snaps())
    @rule(which=WHICH, failure=FAILURE)
    def roll_back(self, which: int, failure: str | int | None) -> None:
        """To one of its snapshots."""
        found = self._model.own_snaps()
        sandbox_id, name = found[which % len(found)]

        async def work() -> bool:
            await self._sandboxes.roll_back(sandbox_id, name)
            return True

        if self._attempt(work, failure):
            self._model.boxes[sandbox_id].content = self._model.snaps[name].content.copy()

    @precondition(lambda self: self._has(Life.RUNNING) and len(self._model.boxes) < MOST)
    @rule(which=WHICH, count=st.integers(1, 3), failure=FAILURE)
    def fork(self, which: int, count: int, failure: str | int | None) -> None:
        """Some children may fail, the others live."""
        parent_id = self._one(which, Life.RUNNING)
        parent = self._model.boxes[parent_id]
        results = self._attempt(lambda: self._sandboxes.fork(parent_id, count), failure)
        for child in results or []:
            if isinstance(child, Sandbox):
                self._model.boxes[child.id] = Box(parent.content.copy(), parent.auto_pause)
            else:
                assert failure is not None

    @precondition(lambda self: self._model.boxes)
    @rule(which=WHICH, nth=st.sampled_from([None, None, 1, 2, 3]))
    def kill(self, which: int, nth: int | None) -> None:
        """One that can't be recorded is lost: its VM has ended."""
        sandbox_id = self._one(which, *Life)
        self._attempt(lambda: self._sandboxes.kill(sandbox_id), nth)
        row = self._run(self._row(sandbox_id))
        if row is None:
            del self._model.boxes[sandbox_id]
        elif row.state is State.LOST:
            self._model.lose(sandbox_id)
        assert row is None or nth is not None

    async def _row(self, sandbox_id: str) -> Sandbox | None:
        return await self._rig.node.captures._database.run(lambda c: store.get(c, sandbox_id))

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH)
    def die(self, which: int) -> None:
        """Its VMM ends by itself."""
        sandbox_id = self._one(which, Life.RUNNING)

        async def work() -> None:
            (await self._rig.instance(sandbox_id)).die("killed")
            await asyncio.sleep(0)  # the end is noticed

        self._run(work())
        self._model.lose(sandbox_id)

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH)
    def expire(self, which: int) -> None:
        """Its deadline passes."""
        sandbox_id = self._one(which, Life.RUNNING)

        async def work() -> None:
            await self._rig.node.captures._database.run(
                lambda c: store.change(c, sandbox_id, {State.RUNNING}, end_at=time.time())
            )
            await self._rig.node.sandboxes._expire(sandbox_id)

        self._run(work())
        if self._model.boxes[sandbox_id].auto_pause:
            self._model.boxes[sandbox_id].pause(memory=True)
        else:
            del self._model.boxes[sandbox_id]

    @precondition(lambda self: self._model.snaps)
    @rule(which=WHICH)
    def delete_snapshot(self, which: int) -> None:
        """Refused while a sandbox that was started from it exists."""
        name = list(self._model.snaps)[which % len(self._model.snaps)]
        try:
            self._run(self._rig.node.templates.delete(name))
        except AenvError as error:
            assert "in use" in str(error)  # noqa: PT017 -- either may be right
        else:
            del self._model.snaps[name]

    @precondition(lambda self: self._has(Life.RUNNING))
    @rule(which=WHICH, kinds=MEETING)
    def meet(self, which: int, kinds: list[str]) -> None:
        """Several requests at once take turns in the order in which they came."""
        sandbox_id = self._one(which, Life.RUNNING)
        work = {
            "pause": lambda: self._sandboxes.pause(sandbox_id),
            "connect": lambda: self._sandboxes.connect(sandbox_id, LONG),
            "fork": lambda: self._sandboxes.fork(sandbox_id, 1),
            "kill": lambda: self._sandboxes.kill(sandbox_id),
        }

        async def together() -> list[Any]:
            return await asyncio.gather(*(work[kind]() for kind in kinds), return_exceptions=True)

        for kind, result in zip(kinds, self._run(together()), strict=True):
            self._met(sandbox_id, kind, result)

    def _met(self, sandbox_id: str, kind: str, result: Any) -> None:
        box = self._model.boxes.get(sandbox_id)
        if box is None:
            assert isinstance(result, SandboxNotFound)
        elif kind == "connect":
            assert result[1] is (box.life is Life.PAUSED)
            box.resume(memory=True)
        elif kind == "kill":
            assert result is None
            del self._model.boxes[sandbox_id]
        elif box.life is Life.PAUSED:
            # A second pause may have come while the first was under way, and joined it.
            assert isinstance(result, Conflict) or (kind == "pause" and result is None)
        elif kind == "pause":
            assert result is None
            box.pause(memory=True)
        else:
            (child,) = result
            self._model.boxes[child.id] = Box(box.content.copy(), box.auto_pause)

    @rule()
    def restart(self) -> None:
        """The server stops, which pauses what runs, and another one starts."""
        self._run(self._rig.node.stop())
        node = Node(self._rig.settings)
        self._run(node.start())
        self._rig = Rig(node, self._rig.settings)
        for sandbox_id in self._model.in_life(Life.RUNNING):
            self._model.boxes[sandbox_id].pause(memory=True)

    @rule(dead=st.sets(WHICH, max_size=2))
    def crash(self, dead: set[int]) -> None:
        """The server is killed, some VMMs with it; the next one goes on with those that live."""
        running = self._model.in_life(Life.RUNNING)
        killed = {running[which % len(running)] for which in dead} if running else set()
        self._homes += 1

        async def work() -> Rig:
            names = {(await self._rig.node.sandboxes.get(each)).instance_id for each in killed}
            left = crash(self._rig, self._folder / str(self._homes))
            left.vms = [vm for vm in left.vms if vm.name not in names]
            await self._rig.node.stop()
            return await left.restart()

        self._rig = self._run(work())
        for sandbox_id in killed:
            self._model.lose(sandbox_id)


def _explore(**changes: Any) -> None:
    chosen = settings(
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # the steps as they were: making them fewer takes many minutes
        **changes,
    )
    run_state_machine_as_test(Lives, settings=chosen)


@pytest.mark.timeout(400)
def test_whatever_is_done_the_table_holds_and_nothing_is_lost_or_leaks() -> None:
    """The same steps each time: what it finds today it finds tomorrow."""
    _explore(max_examples=8, stateful_step_count=40, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_same_for_thousands_of_steps() -> None:
    """Other steps each time."""
    _explore(max_examples=int(os.environ.get("AENV_STEPS", "3000")) // 60, stateful_step_count=60)
