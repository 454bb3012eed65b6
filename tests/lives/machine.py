"""Random operations, failures, crashes and restarts, against a model of what must be true after each.

A failing run prints the steps that led to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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

from aenv.errors import AenvError
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.sandboxes.states import State
from tests.lives import audit, operations
from tests.lives.keeper import Keeper
from tests.lives.model import Box, Life, Snap
from tests.lives.operations import LONG
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
            self._sound = False
            self.world.note(f"{function.__name__}({chosen})")
            function(self, **drawn)
            self._last = function.__name__

        return any_rule(**strategies)(noted)

    return decorate


class Lives(Keeper, RuleBasedStateMachine):
    """One node in a world, and what is true of it."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = 0
        self._sound = False
        """Whether nothing has failed."""

    def new_world(self) -> World:
        """The world for one life."""
        raise NotImplementedError

    @initialize(number=st.integers(0, 1 << 32))
    def begin(self, number: int) -> None:
        """Not with the simplest life, with which hypothesis begins: the same few steps again and again."""
        assume(number)
        self.world = self.new_world()

    def teardown(self) -> None:
        """What can be told by a VM only, of what is paused and of snapshots, is told at the end."""
        if not hasattr(self, "world"):
            return
        try:
            if self._sound:
                self._wake_all()
        finally:
            self.world.close()

    @invariant()
    def agrees(self) -> None:
        """The node is as the model."""
        self._sound = False
        audit.check(self.world, self._model)
        self._sound = True

    @precondition(lambda self: self._has_room())
    @step(which=WHICH, auto_pause=st.booleans(), failure=FAILURE)
    def create(self, which: int, auto_pause: bool, failure: str | int | None) -> None:
        """From the base template or a snapshot."""
        templates: Sequence[tuple[str, Snap | None]] = [("base", None), *self._model.snaps.items()]
        name, snap = templates[which % len(templates)]
        self._created(name, snap, auto_pause=auto_pause, failure=failure)

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
        """What a sandbox or a snapshot has on disk is tightened."""
        names = [*self._model.boxes, *self._model.snaps]
        name = names[which % len(names)]
        of_snapshot = name in self._model.snaps
        self.world.call(operations.compact_snapshot if of_snapshot else operations.compact, name)

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
