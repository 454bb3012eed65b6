"""What is known of the sandboxes of one world, and how it is found out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.errors import AenvError, Conflict, SandboxNotFound
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.sandboxes.states import State
from tests.lives import audit, operations
from tests.lives.model import Box, Content, Life, Model, Snap
from tests.lives.operations import LONG, Attempt
from tests.lives.world import World


class Keeper:
    """Keeps the model of a world."""

    most = 6
    """Sandboxes at a time: enough to meet, few enough to be quick."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self._model = Model()
        self._last = ""
        """The step before this one."""

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

    def _created(
        self, name: str, snap: Snap | None, *, auto_pause: bool, failure: str | int | None
    ) -> str | None:
        """The id of a new sandbox, if it was made."""
        request = CreateSandbox(name, LONG, auto_pause=auto_pause, auto_resume=True)
        created = self._attempt(failure, "create", request)
        if isinstance(created, AenvError):
            return None
        content = Content() if snap is None else snap.content.copy()
        self._model.boxes[created.id] = Box(content, auto_pause)
        if snap is None or not snap.memory:
            self.world.began(created.id)
        return str(created.id)

    def _state(self, sandbox_id: str) -> State | None:
        row = self.world.call(operations.row, sandbox_id)
        return None if row is None else State(row.state)

    def _may_have_synced(self, sandbox_id: str) -> None:
        """A capture failed: its guest may have written its files to the disk before, which harms nobody."""
        seen = self.world.look(sandbox_id)
        if seen.disk == seen.files:
            self._model.boxes[sandbox_id].content.sync()

    def _resumed(self, sandbox_id: str, *, memory: bool) -> None:
        box = self._model.boxes[sandbox_id]
        unwritten = box.content.unwritten
        if box.resume(memory=memory):
            self.world.began(sandbox_id)
            box.content.keep_what_was_written(unwritten, self.world.look(sandbox_id))

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

    def _wake_all(self) -> None:
        for sandbox_id, box in list(self._model.boxes.items()):
            if box.life is not Life.RUNNING:
                self.world.note(f"wake {sandbox_id}")
                self._attempt(None, "connect", sandbox_id, LONG)
                self._resumed(sandbox_id, memory=True)
            self._end(sandbox_id)
        for name, snap in list(self._model.snaps.items()):
            self.world.note(f"start {name}")
            self._end(self._created(name, snap, auto_pause=False, failure=None))
        audit.check(self.world, self._model)

    def _end(self, sandbox_id: str | None) -> None:
        """It has all that it should have, also on its disk."""
        assert sandbox_id is not None
        box = self._model.boxes[sandbox_id]
        box.content.check(self.world.look(sandbox_id, cold=True), f"sandbox {sandbox_id} at the end")
        self._attempt(None, "kill", sandbox_id)
        del self._model.boxes[sandbox_id]
