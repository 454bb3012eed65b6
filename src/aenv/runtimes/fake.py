"""A runtime in memory, for fast tests of everything above the seam.

Its guests (`fake_guest`) are small HTTP servers at the slots' addresses. Like a real guest each loses what
was written after the last capture, and a boot finds its disk alone. Failures can be ordered ahead, and
operations held.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aenv.disks.edits import Edit
from aenv.errors import AenvError, InvalidRequest, NoSpace, RuntimeFailure
from aenv.host import MemoryUse
from aenv.runtimes.base import BareVmm, BootSpec, Capture, Instance, Layer, Place, Resources, RuntimeIdentity
from aenv.runtimes.fake_guest import FakeGuest
from aenv.tasks import finish

WASTEFUL = False
"""What a runtime says of captures until it is told otherwise."""


class FakeInstance:
    """A fake VM."""

    def __init__(self, runtime: FakeRuntime, place: Place, resources: Resources, guest: FakeGuest) -> None:
        self.place = place
        self.resources = resources
        self.pid = os.getpid()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.guest = guest
        self.compactions = 0
        self.left = False
        self.no_space = asyncio.Event()
        self._runtime = runtime
        self.frozen = True

    def memory(self) -> MemoryUse:
        """As the runtime was told."""
        return self._runtime.memory

    async def to_foreground(self) -> None:
        """Be in the background no more."""
        self._runtime.background.discard(self.place.folder.name)

    def die(self, reason: str) -> None:
        """End as a crashed VMM does."""
        if not self.ended.done():
            self.ended.set_result(reason)
        self.guest.run(running=False)

    def stall(self) -> None:
        """Stand still as a VM whose guest finds the host's disk full."""
        self.no_space.set()
        self.guest.run(running=False)

    def check(self, operation: str) -> None:
        """Raise RuntimeFailure if it has ended, or what was ordered for `operation`; stall if that was."""
        if self.ended.done():
            raise RuntimeFailure(f"the VM has ended: {self.ended.result()}")
        self.stall_if_ordered(operation)
        self._runtime.fail_if_ordered(operation)

    def stall_if_ordered(self, operation: str) -> None:
        """Stand still from now on if that was ordered for `operation`."""
        if operation in self._runtime.stalls:
            self._runtime.stalls.remove(operation)
            self.stall()

    async def prepare(self) -> None:
        """There is nothing to do ahead."""

    async def freeze(self) -> None:
        """Hold the guest."""
        await self._runtime.turn("freeze")
        self.check("freeze")
        self.frozen = True
        self.guest.run(running=False)

    async def thaw(self) -> None:
        """Let the guest go on."""
        await self._runtime.turn("thaw")
        self.check("thaw")
        self.frozen = False
        self.no_space.clear()
        if self._runtime.disk_is_full:
            self.stall()
        else:
            self.guest.run(running=True)

    async def capture(self, folder: Path, *, thaw: bool = False, memory: bool = True) -> Capture:
        """Write the guest's memory and its disk to one layer each."""
        if not self.frozen:
            raise RuntimeFailure("only a frozen VM can be captured")
        contents = {"memory": json.dumps(self.guest.memory)} if memory else {}
        contents["disk"] = json.dumps(self.guest.disk)
        try:
            await self._runtime.turn("capture")
            self.check("capture")
            if self._runtime.disk_is_full and not self._runtime.room_for_captures:
                raise NoSpace("the fake disk is full")
        finally:
            if thaw and not self.ended.done():
                await self.thaw()
        layers = tuple(Layer(role, folder / f"{role}.json") for role in contents)
        for layer in layers:
            await asyncio.to_thread(layer.path.write_text, contents[layer.role])
        return Capture(self._runtime.identity, self.resources, layers, memory)

    async def compact(self) -> bool:
        """Count that it was asked to."""
        self.check("compact")
        self.compactions += 1
        return True

    async def stop(self) -> None:
        """End it."""
        await self._runtime.turn("stop")
        self.die("stopped")
        await self.guest.close()
        self._runtime.instances.pop(self.place.folder.name, None)
        self._runtime.background.discard(self.place.folder.name)

    async def leave(self) -> None:
        """It stays in `instances`, unwatched."""
        await self._runtime.turn("leave")
        self._runtime.fail_if_ordered("leave")
        self.left = True


class FakeBareVmm:
    """A fake VMM process without a guest."""

    def __init__(self, runtime: FakeRuntime, place: Place, key: str) -> None:
        self.place = place
        self.key = key
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._runtime = runtime

    def memory(self) -> MemoryUse:
        """As the runtime was told."""
        return self._runtime.memory

    async def to_foreground(self) -> None:
        """Be in the background no more."""
        self._runtime.background.discard(self.place.folder.name)

    async def load(self, capture: Capture) -> Instance:
        """Read the layers and start a guest with them, frozen."""
        await self._runtime.turn("load")
        self._runtime.fail_if_ordered("load")
        contents = await _contents(capture)
        return await self._runtime.start(self.place, capture.resources, contents["memory"], contents["disk"])

    async def stop(self) -> None:
        """End it."""
        self._runtime.background.discard(self.place.folder.name)
        if not self.ended.done():
            self.ended.set_result("stopped")


class FakeRuntime:
    """Makes fake VMs. `instances` maps the names of instance folders to those alive."""

    name = "fake"

    def __init__(self) -> None:
        self.identity = RuntimeIdentity("fake", "1", "none", "none")
        self.instances: dict[str, FakeInstance] = {}
        self.disk_is_full = False
        """Every guest that is thawed finds the disk full, as do captures that have no room."""
        self.room_for_captures = True
        self.holds_memory = False
        """Whether bare VMMs keep the memory open of the capture they were made for last."""
        self.wasteful = WASTEFUL
        """What is said of every capture that wasn't compacted."""
        self.asked = 0
        """How often it was asked whether a capture is wasteful."""
        self.bears_more = True
        """Whether nothing is wasteful where a VM is kept."""
        self.compacting = asyncio.Event()
        self.compacting.set()
        """Cleared, a compaction waits in the middle until it is set again."""
        self.memory = MemoryUse(private=48 << 20, shared=128 << 20)
        """What each VM holds."""
        self.background: set[str] = set()
        """The names of instance folders of what is in the background."""
        self.stalls: list[str] = []
        """Operations, as in `order_failure`, and sync: in the next of each the guest finds the disk full."""
        self.commands: list[str] = []
        """Every command line that a guest ran."""
        self.boots = 0
        self._failures: dict[str, list[AenvError]] = defaultdict(list)
        self._held: dict[str, asyncio.Event] = {}

    @contextmanager
    def hold(self, operation: str) -> Iterator[None]:
        """Let every `operation` (as in `order_failure`, or stop) wait until the block ends."""
        held = self._held[operation] = asyncio.Event()
        try:
            yield
        finally:
            del self._held[operation]
            held.set()

    async def turn(self, operation: str) -> None:
        """Wait while `operation` is held."""
        if (held := self._held.get(operation)) is not None:
            await held.wait()

    def order_failure(self, operation: str, error: AenvError) -> None:
        """Let the next `operation` fail with `error`.

        It is one of boot, spawn, load, adopt, freeze, thaw, capture, compact and leave.
        """
        self._failures[operation].append(error)

    def fail_if_ordered(self, operation: str) -> None:
        """Raise the failure that was ordered for `operation`, if one was."""
        if self._failures[operation]:
            raise self._failures[operation].pop(0)

    async def start(
        self, place: Place, resources: Resources, memory: dict[str, Any], disk: dict[str, Any]
    ) -> FakeInstance:
        """A frozen instance with this memory and disk."""
        guest = FakeGuest(memory, disk)
        try:
            await finish(guest.start(place.slot.host_address))
        except BaseException:
            await finish(guest.close())
            raise
        instance = FakeInstance(self, place, resources, guest)
        guest.on_command = self.commands.append
        guest.on_sync = functools.partial(instance.stall_if_ordered, "sync")
        self.instances[place.folder.name] = instance
        return instance

    async def boot(self, spec: BootSpec, place: Place) -> Instance:
        """A running instance with empty memory, and with an empty disk unless a capture has one."""
        await self.turn("boot")
        self.fail_if_ordered("boot")
        self.boots += 1
        disk = {} if isinstance(spec.disk, Path) else (await _contents(spec.disk))["disk"]
        instance = await self.start(place, spec.resources, {}, disk)
        try:
            await instance.thaw()
        except AenvError:
            await instance.stop()
            raise
        return instance

    async def edit_disk(
        self,
        disk: Capture | None,
        folder: Path,
        edits: Sequence[Edit],
        *,
        disk_mib: int,
        say: Callable[[str], None],
    ) -> Capture:
        """A disk that remembers, under `edits`, which functions were called with what."""
        if disk is not None and disk_mib < disk.resources.disk_mib:
            raise InvalidRequest(f"a disk of {disk.resources.disk_mib} MiB can't shrink to {disk_mib} MiB")
        content = {} if disk is None else (await _contents(disk))["disk"]
        await self.turn("edit")
        self.fail_if_ordered("edit")
        for edit in edits:
            say(edit.function)
        done = [[edit.function, dict(edit.arguments)] for edit in edits]
        content["edits"] = [*content.get("edits", ()), *done]
        layer = Layer("disk", folder / "disk.json")
        await asyncio.to_thread(layer.path.write_text, json.dumps(content))
        return Capture(self.identity, Resources(0, 0, disk_mib), (layer,), memory=False)

    async def spawn(self, capture: Capture, place: Place, *, background: bool = False) -> BareVmm:
        """A bare VMM for captures like this one."""
        await self.turn("spawn")
        self.fail_if_ordered("spawn")
        if background:
            self.background.add(place.folder.name)
        return FakeBareVmm(self, place, self.key(capture))

    def key(self, capture: Capture) -> str:
        """All captures of a size fit each other."""
        if capture.identity != self.identity:
            raise RuntimeFailure(f"the capture was made by {capture.identity.vmm}, this is {self.name}")
        if not capture.memory:
            raise RuntimeFailure("the capture holds a disk only: it can be booted, not restored")
        return f"{capture.resources.cpu_count}/{capture.resources.memory_mib}"

    def held(self, capture: Capture) -> Path | None:
        """The memory, if `holds_memory` says so."""
        return capture.layers[0].path if self.holds_memory else None

    async def find(self, folder: Path) -> Place:
        """Where an instance is that was put into `instances` before this runtime was used."""
        if folder.name not in self.instances:
            raise RuntimeFailure("its VM ended while no server watched it")
        return self.instances[folder.name].place

    async def adopt(self, place: Place) -> Instance:
        """That instance."""
        instance = self.instances[place.folder.name]
        try:
            instance.check("adopt")
        except AenvError:
            await instance.stop()
            raise
        return instance

    async def end_strays(self, workspace: Path, keep: Collection[Path]) -> int:
        """Stop the other ones."""
        strays = [each for each in self.instances.values() if each.place.folder not in keep]
        for instance in strays:
            await instance.stop()
        return len(strays)

    async def is_wasteful(self, capture: Capture, *, kept: bool) -> bool:
        """As `wasteful` says, unless a VM is kept."""
        self.asked += 1
        return (
            self.wasteful
            and not (kept and self.bears_more)
            and not any(each.path.name.startswith("compact") for each in capture.layers)
        )

    async def compact(self, capture: Capture, folder: Path) -> Capture:
        """Copies of the layers."""
        layers = []
        for layer in capture.layers:
            path = folder / f"compact-{layer.role}.json"
            await asyncio.to_thread(shutil.copyfile, layer.path, path)
            layers.append(Layer(layer.role, path))
            await self.compacting.wait()
            self.fail_if_ordered("compact")
        return Capture(capture.identity, capture.resources, tuple(layers), capture.memory)

    async def close(self) -> None:
        """Nothing is held."""


async def _contents(capture: Capture) -> dict[str, Any]:
    """What is in each layer, by role. Raises RuntimeFailure if one can't be read."""
    contents = {}
    for layer in capture.layers:
        try:
            contents[layer.role] = json.loads(await asyncio.to_thread(layer.path.read_text))
        except ValueError as error:
            raise RuntimeFailure(f"layer {layer.path.name} is corrupt") from error
    return contents
