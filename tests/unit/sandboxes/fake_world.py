"""Where the state machine runs thousands of steps: a node on the fake runtime, in this process."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aenv.errors import RuntimeFailure
from aenv.node import Node
from aenv.runtimes.base import Capture
from aenv.runtimes.fake import FakeRuntime
from tests.lives.failing import FailingDatabase
from tests.lives.model import Seen
from tests.unit.sandboxes.conftest import Rig, fake_settings
from tests.unit.sandboxes.crash import Crashes, crash

T = TypeVar("T")


class FakeWorld:
    """A world; see `tests.lives.world.World`."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("aenv.node.Database", FailingDatabase)
        self._patch.setattr("aenv.runtimes.fake.WASTEFUL", True)
        self._patch.setattr("aenv.sandboxes.activity.QUIET_SECONDS", 1e9)  # it compacts when it is told to
        self._patch.setattr("aenv.sandboxes.activity.PATIENCE_SECONDS", 1e9)
        self._folder = Path(tempfile.mkdtemp(prefix="aenv-lives-"))
        self._homes = 0
        self._loop = asyncio.Runner()
        settings = fake_settings(self._folder / "0", hot_vms=0, bare_vms=0, stopped_vms=2, metrics_interval=0)
        self._rig = Rig(Node(settings), settings)
        self._run(self._rig.node.start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call it here."""

        async def work() -> T:
            return await function(self._rig.node, *arguments)

        return self._run(work())

    def order_failure(self, node: Node, step: str) -> None:
        """The runtime knows how to fail."""
        _runtime(node).order_failure(step, RuntimeFailure("it was told to fail"))

    def drop_failures(self, node: Node) -> None:
        """It fails no more."""
        _runtime(node)._failures.clear()

    def began(self, sandbox_id: str) -> None:
        """A fake guest needs nothing more."""

    def put(self, sandbox_id: str, key: str, value: int, *, disk: bool) -> None:
        """Ask the guest."""
        self._run(self._rig.put(sandbox_id, key, value, "disk" if disk else "memory"))

    def look(self, sandbox_id: str, *, cold: bool = False) -> Seen:
        """Look into the guest, which has no cache."""
        guest = self._run(self._rig.instance(sandbox_id)).guest
        assert guest.memory.get("frozen") is not True, f"sandbox {sandbox_id} is frozen"
        assert guest.identity["sandboxId"] == sandbox_id, guest.identity
        return _seen(guest.memory, guest.disk)

    def look_into(self, capture: Capture) -> Seen:
        """Read the layers."""
        layers = {layer.role: json.loads(layer.path.read_text()) for layer in capture.layers}
        return _seen(layers.get("memory", {}), layers["disk"])

    def kill_vmm(self, sandbox_id: str) -> None:
        """It ends."""
        self._run(self._rig.instance(sandbox_id)).die("killed")

    def restart(self) -> None:
        """On the same home."""
        self._run(self._rig.node.stop())
        node = Node(self._rig.settings)
        self._run(node.start())
        self._rig = Rig(node, self._rig.settings)

    def crash(self, dead: Collection[str]) -> None:
        """On a copy of what was there."""
        self._homes += 1

        async def work() -> Rig:
            names = {(await self._rig.node.sandboxes.get(each)).instance_id for each in dead}
            left = crash(self._rig, self._folder / str(self._homes))
            left.vms = [vm for vm in left.vms if vm.name not in names]
            await self._rig.node.stop()
            return await left.restart()

        self._rig = self._run(work())

    def crash_amid(self, function: Callable[..., Awaitable[Any]], *arguments: Any, moment: int) -> None:
        """After one of its steps."""
        self._homes += 1
        folder = self._folder / str(self._homes)

        async def work() -> Rig:
            rig = self._rig
            with (
                pytest.MonkeyPatch.context() as patch,
                Crashes(rig.settings, rig.runtime, folder, patch.setattr) as crashes,
            ):
                await function(rig.node, *arguments)
            left = crashes.found[moment % len(crashes.found)] if crashes.found else crash(rig, folder)
            await rig.node.stop()
            return await left.restart()

        self._rig = self._run(work())

    def check_leaks(self, instances: Collection[str]) -> None:
        """There are as many VMs and slots."""
        runtime, network = self._rig.runtime, self._rig.network
        assert set(runtime.instances) == set(instances), set(runtime.instances)
        assert set(network.in_use) == {each.place.slot.index for each in runtime.instances.values()}

    def note(self, step: str) -> None:
        """Hypothesis says it."""

    def close(self) -> None:
        """Stop the node."""
        try:
            self._run(self._rig.node.stop())
        finally:
            self._loop.close()
            self._patch.undo()
            shutil.rmtree(self._folder)


def _runtime(node: Node) -> FakeRuntime:
    assert isinstance(node.runtime, FakeRuntime)
    return node.runtime


def _seen(memory: Mapping[str, Any], disk: Mapping[str, int]) -> Seen:
    kept = {key: value for key, value in memory.items() if key.startswith("key")}
    return Seen(kept, {**disk, **memory.get("unwritten", {})}, disk)
