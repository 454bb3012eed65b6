"""A server on the fake runtime is killed: what outlives it at one instant, and the next server on that.

What is left at an instant is copied, files and virtual machines, so one run of an operation yields as many
crashes as wanted, and the server that "died" goes on undisturbed.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.database import Database
from aenv.images.progress import Progress
from aenv.network.fake import FakeSlotPool
from aenv.node import Node
from aenv.runtimes.base import Place, Resources
from aenv.runtimes.choice import Chosen
from aenv.runtimes.fake import FakeBareVmm, FakeInstance, FakeRuntime
from aenv.runtimes.fake_guest import FakeGuest
from aenv.settings import Settings
from tests.unit.sandboxes.conftest import Rig


@dataclass(frozen=True)
class _Vm:
    """A virtual machine at that instant."""

    name: str
    slot: int
    resources: Resources
    frozen: bool
    memory: dict[str, Any]
    disk: dict[str, Any]
    identity: dict[str, Any]


@dataclass
class Crash:
    """All that outlives a server killed at one instant. The next one gets `runtime` and `network`."""

    settings: Settings
    where: str
    vms: list[_Vm]
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    network: FakeSlotPool = field(default_factory=FakeSlotPool)

    async def restart(self) -> Rig:
        """The next server, started. Stop its node."""
        await self.revive()
        rig = Rig(Node(self.settings, self._choose), self.settings)
        await rig.node.start()
        return rig

    async def revive(self) -> None:
        """Let the virtual machines run that the next server will find; `restart` does it if nobody has."""
        while self.vms:
            vm = self.vms.pop()
            place = Place(self.network.slot(vm.slot), self.settings.workspace_dir.resolve() / vm.name)
            guest = FakeGuest(vm.memory, vm.disk)
            guest.identity = vm.identity
            await guest.start(place.slot.host_address)
            instance = FakeInstance(self.runtime, place, vm.resources, guest)
            if not vm.frozen:
                await instance.thaw()
            self.runtime.instances[vm.name] = instance

    async def _choose(self, settings: Settings, progress: Progress) -> Chosen:
        return Chosen(self.runtime, self.network, settings.images_dir / "base.ext4")


def crash(rig: Rig, home: Path) -> Crash:
    """The server is killed now."""
    return _crash(rig.settings, rig.runtime, rig.node.captures._database, home, "")


def _crash(settings: Settings, runtime: FakeRuntime, database: Database, home: Path, where: str) -> Crash:
    """It blocks the event loop, so nothing happens meanwhile but in threads."""
    database._thread.submit(_copy, settings.home, home).result()
    vms = [
        _Vm(
            name=name,
            slot=instance.place.slot.index,
            resources=instance.resources,
            frozen=instance.frozen,
            memory=copy.deepcopy(instance.guest.memory),
            disk=copy.deepcopy(instance.guest.disk),
            identity=copy.deepcopy(instance.guest.identity),
        )
        for name, instance in runtime.instances.items()
        if not instance.ended.done()
    ]
    return Crash(settings.model_copy(update={"home": home}), where, vms)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder in which files may appear and vanish."""
    target.mkdir(parents=True)
    for path in list(source.iterdir()):
        try:
            if path.is_dir():
                _copy(path, target / path.name)
            else:
                shutil.copyfile(path, target / path.name)
        except FileNotFoundError:
            continue


class Crashes:
    """Kills the server after every step that it takes, while the block runs."""

    def __init__(
        self, settings: Settings, runtime: FakeRuntime, folder: Path, patch: Callable[..., None]
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._database: Database | None = None
        self._folder = folder
        self._patch = patch
        self._armed = False
        self.found: list[Crash] = []

    def __enter__(self) -> Crashes:
        self._armed = True
        steps: list[tuple[type, str]] = [(Database, "run"), (Database, "flush")]
        steps += [(FakeInstance, name) for name in ("freeze", "thaw", "capture", "stop")]
        steps += [(FakeRuntime, "boot"), (FakeRuntime, "spawn"), (FakeBareVmm, "load")]
        for owner, name in steps:
            self._patch(owner, name, self._wrapped(owner, name))
        return self

    def __exit__(self, *_: object) -> None:
        self._armed = False

    def _wrapped(self, owner: type, name: str) -> Callable[..., Awaitable[Any]]:
        original = getattr(owner, name)

        async def step(*arguments: Any, **named: Any) -> Any:
            result = await original(*arguments, **named)
            if owner is Database:
                self._database = arguments[0]
            if self._armed and self._database is not None:
                where = f"after {name} ({len(self.found)})"
                home = self._folder / str(len(self.found))
                self.found.append(_crash(self._settings, self._runtime, self._database, home, where))
            return result

        return step


async def side_by_side(work: list[Awaitable[None]]) -> None:
    """Do all of `work`; every failure is raised, none hides another."""
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [each for each in results if isinstance(each, Exception)]
    if failures:
        raise ExceptionGroup("some failed", failures)
