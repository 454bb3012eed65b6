"""Random operations, failures, crashes and restarts, against a model of what must be true after each.

A failing run prints the steps that led to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aenv.errors import AenvError, Conflict, SandboxNotFound
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.sandboxes.states import State
from tests.lives import audit, operations
from tests.lives.model import Box, Content, Life, Model, Snap
from tests.lives.operations import LONG, Attempt
from tests.lives.world import World

WHICH = st.integers(0, 99)
"""Chooses among what there is."""

FAILURE = st.sampled_from([None] * 6 + ["freeze", "capture", "load", "thaw", "spawn", "boot"] + [1, 2, 3, 4])
"""What goes wrong below an operation, if anything: a step of the runtime, or the nth transaction."""

AMID = ["pause", "connect", "fork", "snapshot", "roll_back", "kill", "create"]
"""What a server may be killed in the middle of."""

MEETING = st.lists(st.sampled_from(["pause", "connect", "fork", "kill"]), min_size=2, max_size=4)
"""Requests that come at once."""


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule of which the world is told."""

    any_rule: Callable[..., Any] = rule  # it is typed for rules whose strategies are named in place

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def noted(self: Lives, **drawn: Any) -> None:
            chosen = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            self.world.note(f"{function.__name__}({chosen})")
            function(self, **drawn)
            self._last = function.__name__

        return any_rule(**strategies)(noted)

    return decorate


class Lives(RuleBasedStateMachine):
    """One node in a world, and what is true of it."""

    most = 6
    """Sandboxes at a time: enough to meet, few enough to be quick."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self._model = Model()
        self._keys = 0
        self._last = ""

    def new_world(self) -> World:
        """The world for one life."""
        raise NotImplementedError

    @initialize(number=st.integers(0, 1 << 32))
    def begin(self, number: int) -> None:
        """Not with the simplest life, with which hypothesis begins: the same few steps again and again."""
        assume(number)
        self.world = self.new_world()

    def teardown(self) -> None:
        """Remove all."""
        if hasattr(self, "world"):
            self.world.close()

    def _one(self, which: int, *lives: Life) -> str:
        found = self._model.in_life(*lives)
        return found[which % len(found)]

    def _has(self, *lives: Life) -> bool:
        return bool(self._model.in_life(*lives))

    def _has_room(self) -> bool:
        return len(self._model.boxes) < self.most

    def _is_news(self) -> bool:
        """Whether a restart, a crash or a compaction finds something else than the one before."""
        return self._last not in ("restart", "crash", "crash_amid", "compact")

    def _attempt(self, failure: str | int | None, operation: str, *arguments: Any, **named: Any) -> Any:
        """The result of an operation on sandboxes, or its error if it was told to fail."""
        world = self.world
        attempt = Attempt(operation, arguments, named, failure, world.order_failure, world.drop_failures)
        result = world.call(operations.perform, attempt)
        if isinstance(result, AenvError) and failure is None:
            raise result
        return result

    @invariant()
    def agrees(self) -> None:
        """The node is as the model."""
        audit.check(self.world, self._model)

    @precondition(lambda self: self._has_room())
    @step(which=WHICH, auto_pause=st.booleans(), failure=FAILURE)
    def create(self, which: int, auto_pause: bool, failure: str | int | None) -> None:
        """From the base template or a snapshot."""
        templates: Sequence[tuple[str, Snap | None]] = [("base", None), *self._model.snaps.items()]
        name, snap = templates[which % len(templates)]
        request = CreateSandbox(name, LONG, auto_pause=auto_pause, auto_resume=True)
        created = self._attempt(failure, "create", request)
        if isinstance(created, Sandbox):
            content = Content() if snap is None else snap.content.copy()
            self._model.boxes[created.id] = Box(content, auto_pause)
            if snap is None or not snap.memory:
                self.world.began(created.id)

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH, disk=st.booleans(), name=st.integers(0, 3))
    def write(self, which: int, disk: bool, name: int) -> None:
        """A value into memory or into a file."""
        sandbox_id = self._one(which, Life.RUNNING)
        self._keys += 1
        self.world.put(sandbox_id, f"key{name}", self._keys, disk=disk)
        content = self._model.boxes[sandbox_id].content
        (content.unwritten if disk else content.memory)[f"key{name}"] = self._keys

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def pause(self, which: int, memory: bool, failure: str | int | None) -> None:
        """With memory or without."""
        sandbox_id = self._one(which, Life.RUNNING)
        self._attempt(failure, "pause", sandbox_id, memory=memory)
        box = self._model.boxes[sandbox_id]
        if self._state(sandbox_id) is State.PAUSED:
            box.pause(memory=memory)
        else:
            assert failure is not None
            self._may_have_synced(sandbox_id)

    def _state(self, sandbox_id: str) -> State | None:
        row = self.world.call(operations.row, sandbox_id)
        return None if row is None else State(row.state)

    def _may_have_synced(self, sandbox_id: str) -> None:
        """A capture failed: its guest may have written its files to the disk before, which harms nobody."""
        seen = self.world.look(sandbox_id)
        if seen.disk == seen.files:
            self._model.boxes[sandbox_id].content.sync()

    @precondition(lambda self: self._has(Life.PAUSED, Life.DISK_ONLY))
    @step(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def resume(self, which: int, memory: bool, failure: str | int | None) -> None:
        """Where it was, or by a boot."""
        sandbox_id = self._one(which, Life.PAUSED, Life.DISK_ONLY)
        self._attempt(failure, "connect", sandbox_id, LONG, memory=memory)
        if self._state(sandbox_id) is State.RUNNING:
            self._resumed(sandbox_id, memory=memory)
        else:
            assert failure is not None

    def _resumed(self, sandbox_id: str, *, memory: bool) -> None:
        box = self._model.boxes[sandbox_id]
        unwritten = box.content.unwritten
        if box.resume(memory=memory):
            self.world.began(sandbox_id)
            box.content.keep_what_was_written(unwritten, self.world.look(sandbox_id))

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH, memory=st.booleans(), failure=FAILURE)
    def snapshot(self, which: int, memory: bool, failure: str | int | None) -> None:
        """Kept after its source dies."""
        sandbox_id = self._one(which, Life.RUNNING)
        taken = self._attempt(failure, "snapshot", sandbox_id, memory=memory)
        if isinstance(taken, AenvError):
            self._may_have_synced(sandbox_id)
            return
        content = self._model.boxes[sandbox_id].captured(memory=memory)
        self._model.snaps[taken.snapshot_id] = Snap(content, sandbox_id, memory)

    @precondition(lambda self: self._model.own_snaps())
    @step(which=WHICH, failure=FAILURE)
    def roll_back(self, which: int, failure: str | int | None) -> None:
        """To one of its snapshots."""
        found = self._model.own_snaps()
        sandbox_id, name = found[which % len(found)]
        if self._attempt(failure, "roll_back", sandbox_id, name) is None:
            snap = self._model.snaps[name]
            self._model.boxes[sandbox_id].content = snap.content.copy()
            if not snap.memory:
                self.world.began(sandbox_id)

    @precondition(lambda self: self._has(Life.RUNNING) and self._has_room())
    @step(which=WHICH, count=st.integers(1, 3), failure=FAILURE)
    def fork(self, which: int, count: int, failure: str | int | None) -> None:
        """Some children may fail, the others live."""
        parent_id = self._one(which, Life.RUNNING)
        parent = self._model.boxes[parent_id]
        results = self._attempt(failure, "fork", parent_id, count)
        for child in [] if isinstance(results, AenvError) else results:
            if isinstance(child, Sandbox):
                self._model.boxes[child.id] = Box(parent.content.copy(), parent.auto_pause)
            else:
                assert failure is not None

    @precondition(lambda self: self._model.boxes)
    @step(which=WHICH, nth=st.sampled_from([None, None, 1, 2, 3]))
    def kill(self, which: int, nth: int | None) -> None:
        """One that can't be recorded is lost: its VM has ended."""
        sandbox_id = self._one(which, *Life)
        self._attempt(nth, "kill", sandbox_id)
        state = self._state(sandbox_id)
        if state is None:
            del self._model.boxes[sandbox_id]
        elif state is State.LOST:
            self._model.lose(sandbox_id)
        assert state is None or nth is not None

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH)
    def die(self, which: int) -> None:
        """Its VMM ends by itself."""
        sandbox_id = self._one(which, Life.RUNNING)
        self.world.kill_vmm(sandbox_id)
        self.world.call(operations.lost, sandbox_id)
        self._model.lose(sandbox_id)

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH)
    def expire(self, which: int) -> None:
        """Its deadline passes."""
        sandbox_id = self._one(which, Life.RUNNING)
        self.world.call(operations.expire, sandbox_id)
        if self._model.boxes[sandbox_id].auto_pause:
            self._model.boxes[sandbox_id].pause(memory=True)
        else:
            del self._model.boxes[sandbox_id]

    @precondition(lambda self: self._model.boxes and self._is_news())
    @step(which=WHICH)
    def compact(self, which: int) -> None:
        """What it has on disk is tightened."""
        self.world.call(operations.compact, self._one(which, *Life))

    @precondition(lambda self: self._model.snaps)
    @step(which=WHICH)
    def delete_snapshot(self, which: int) -> None:
        """Refused while a sandbox that was started from it exists."""
        name = list(self._model.snaps)[which % len(self._model.snaps)]
        error = self.world.call(operations.delete_snapshot, name)
        if error is None:
            del self._model.snaps[name]
        else:
            assert "in use" in str(error), error

    @precondition(lambda self: self._has(Life.RUNNING))
    @step(which=WHICH, kinds=MEETING)
    def meet(self, which: int, kinds: list[str]) -> None:
        """Several requests at once take turns in the order in which they came."""
        sandbox_id = self._one(which, Life.RUNNING)
        results = self.world.call(operations.meet, sandbox_id, kinds)
        for kind, result in zip(kinds, results, strict=True):
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

    @precondition(lambda self: self._model.boxes and self._is_news())
    @step()
    def restart(self) -> None:
        """The server stops, which pauses what runs, and another one starts."""
        self.world.restart()
        for sandbox_id in self._model.in_life(Life.RUNNING):
            self._model.boxes[sandbox_id].pause(memory=True)

    @precondition(lambda self: self._model.boxes and self._is_news())
    @step(dead=st.sets(WHICH, max_size=2))
    def crash(self, dead: set[int]) -> None:
        """The server is killed, some VMMs with it; the next one goes on with those that live."""
        running = self._model.in_life(Life.RUNNING)
        killed = {running[which % len(running)] for which in dead} if running else set()
        self.world.crash(killed)
        for sandbox_id in killed:
            self._model.lose(sandbox_id)

    @precondition(lambda self: self._model.boxes and self._is_news())
    @step(which=WHICH, operation=st.sampled_from(AMID), moment=WHICH)
    def crash_amid(self, which: int, operation: str, moment: int) -> None:
        """The server is killed while it does something: it has been done, or it has not."""
        sandbox_id = self._one(which, *Life)
        arguments: tuple[Any, ...] = (sandbox_id,)
        named: dict[str, Any] = {}
        snap = None
        if operation == "create":
            arguments = (CreateSandbox("base", LONG, auto_pause=True, auto_resume=True),)
        elif operation == "connect":
            arguments = (sandbox_id, LONG)
        elif operation == "fork":
            arguments = (sandbox_id, 2)
        elif operation == "pause":
            named = {"memory": moment % 2 == 0}
        elif operation == "roll_back":
            own = [name for source, name in self._model.own_snaps() if source == sandbox_id]
            name = next((each for each in own if self._model.snaps[each].memory), "none")
            arguments, snap = (sandbox_id, name), self._model.snaps.get(name)
        self.world.crash_amid(operations.attempt_anyhow, operation, arguments, named, moment=moment)
        self._find_out(sandbox_id, operation, memory=named.get("memory", True))
        if snap is not None:
            self._may_have_gone_back(sandbox_id, snap)

    def _find_out(self, sandbox_id: str, operation: str, *, memory: bool) -> None:
        """What has been done to a sandbox, of which nothing but one operation may have changed anything."""
        box = self._model.boxes[sandbox_id]
        rows = self.world.call(operations.rows)
        self._find_new(rows, operation, box)
        for name in set(self.world.call(operations.snapshots)) - set(self._model.snaps):
            assert operation == "snapshot", f"{name} came out of {operation}"
            self._model.snaps[name] = Snap(box.captured(memory=True), sandbox_id, memory=True)
        if sandbox_id not in rows:
            assert operation == "kill", f"{operation} ended sandbox {sandbox_id}"
            del self._model.boxes[sandbox_id]
        elif rows[sandbox_id].state is State.PAUSED and box.life is Life.RUNNING:
            assert operation == "pause", f"{operation} paused sandbox {sandbox_id}"
            box.pause(memory=memory)
        elif rows[sandbox_id].state is State.RUNNING and box.life is not Life.RUNNING:
            assert operation == "connect", f"{operation} resumed sandbox {sandbox_id}"
            self._resumed(sandbox_id, memory=True)
        elif box.life is Life.RUNNING:
            self._may_have_synced(sandbox_id)

    def _find_new(self, rows: Mapping[str, Sandbox], operation: str, parent: Box) -> None:
        """Sandboxes whose request got no answer."""
        for new in [each for each in rows if each not in {*self._model.boxes, *self._model.lost}]:
            assert operation in ("create", "fork"), f"{new} came out of {operation}"
            if operation == "fork":
                self._model.boxes[new] = Box(parent.content.copy(), parent.auto_pause)
            else:
                self._model.boxes[new] = Box(Content(), auto_pause=True)
                self.world.began(new)

    def _may_have_gone_back(self, sandbox_id: str, snap: Snap) -> None:
        """All of it, or nothing."""
        box = self._model.boxes[sandbox_id]
        seen = self.world.look(sandbox_id)
        try:
            box.content.copy().check(seen, sandbox_id)
        except AssertionError:
            box.content = snap.content.copy()


def explore(lives: type[Lives], **changes: Any) -> None:
    """Live some of the lives."""
    chosen = settings(
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # the steps as they were: making them fewer takes many minutes
        **changes,
    )
    run_state_machine_as_test(lives, settings=chosen)
