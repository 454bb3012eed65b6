"""Machines: an instance together with its network slot, its folder and a client of its guest agent."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from aenv import ids
from aenv.errors import AenvError, NoSpace, RuntimeFailure, StorageFailure
from aenv.full import write_failure
from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient, InitRequest
from aenv.host import MemoryUse
from aenv.network.base import NetworkPool
from aenv.runtimes.base import BareVmm, BootSpec, Capture, Instance, Place, Runtime
from aenv.sandboxes.models import Sandbox
from aenv.tasks import cancel, finish

log = structlog.get_logger()

GUEST_TIMEOUT = 30.0
"""Seconds that a started guest has to answer. Under emulation on a busy host it takes seconds."""

FREEZE_TIMEOUT = 5.0
"""Seconds that a running guest has to freeze its processes before it counts as unresponsive."""

SYNC_TIMEOUT = 50.0
"""Seconds that a guest has to write everything to its disk: less than an SDK waits for the answer."""

BOOT_TIMEOUT = 50.0
"""Seconds that a booted guest has to answer."""


@dataclass(frozen=True, eq=False)
class Machine:
    """One live VM with everything that must be given back when it ends."""

    place: Place
    instance: Instance
    guest: EnvdClient

    @property
    def id(self) -> str:
        """Name of its folder and of the instance in a sandbox's record."""
        return self.place.folder.name

    def memory(self) -> MemoryUse:
        """What its VMM holds of the host's memory. Called in any thread."""
        return self.instance.memory()


GuestFactory = Callable[[str], EnvdClient]
"""Makes the client for an agent's base URL."""


class Machines:
    """Makes and destroys machines."""

    def __init__(self, runtime: Runtime, network: NetworkPool, workspace: Path, guests: GuestFactory) -> None:
        self._runtime = runtime
        self._network = network
        self._workspace = workspace
        self._guests = guests

    def key(self, capture: Capture) -> str:
        """Which bare VMMs can load this capture."""
        return self._runtime.key(capture)

    def held(self, capture: Capture) -> Path | None:
        """The layer of the capture that bare VMMs with its key keep open, if they do."""
        return self._runtime.held(capture)

    def loaded(self, capture: Capture) -> int:
        """Bytes of memory that a VMM gets of its own from the capture, beside the layer that it shares."""
        shared = self.held(capture)
        own = [layer for layer in capture.layers if layer.role.startswith("memory") and layer.path != shared]
        return sum(layer.size or 0 for layer in own)

    async def _place(self) -> Place:
        slot = await self._network.acquire()
        folder = self._workspace / ids.new_instance_id()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            await self._network.release(slot)
            what = f"a VM's folder can't be made in {folder}"
            raise write_failure(what, self._workspace, error, StorageFailure) from error
        return Place(slot, folder)

    async def _give_back(self, place: Place) -> None:
        await asyncio.to_thread(shutil.rmtree, place.folder, ignore_errors=True)
        await self._network.release(place.slot)

    def _machine(self, place: Place, instance: Instance) -> Machine:
        return Machine(place, instance, self._guests(f"http://{place.slot.host_address}:{ENVD_PORT}"))

    async def spawn(self, capture: Capture, *, background: bool = False) -> BareVmm:
        """A VMM process ready to load captures like this one. End it with `discard`."""
        place = await self._place()
        try:
            return await self._runtime.spawn(capture, place, background=background)
        except BaseException:
            await finish(self._give_back(place))
            raise

    async def discard(self, vmm: BareVmm) -> None:
        """End a bare VMM that wasn't needed."""
        await vmm.stop()
        await self._give_back(vmm.place)

    async def load(self, vmm: BareVmm, capture: Capture) -> Machine:
        """Put a capture into a bare VMM; the machine is frozen. On failure the VMM is gone."""
        try:
            instance = await vmm.load(capture)
        except BaseException:
            await finish(self.discard(vmm))
            raise
        return self._machine(vmm.place, instance)

    async def adopt(self, place: Place, token: str | None) -> Machine:
        """Go on with the VM of an earlier server, frozen or not; `token` is its agent's.

        On failure the VM is ended and its place given back. Raises RuntimeFailure.
        """
        try:
            instance = await self._runtime.adopt(place)
        except BaseException:
            await finish(self._give_back(place))
            raise
        machine = self._machine(place, instance)
        machine.guest.set_token(token)
        try:
            await self._network.adopt(place.slot)
        except BaseException:
            await finish(self.destroy(machine))
            raise
        return machine

    async def boot(self, spec: BootSpec, *, patience: float = BOOT_TIMEOUT) -> Machine:
        """Boot and wait for the agent, at most `patience` seconds.

        Raises GuestUnresponsive, or RuntimeFailure if the VM ends before.
        """
        place = await self._place()
        try:
            instance = await self._runtime.boot(spec, place)
        except BaseException:
            await finish(self._give_back(place))
            raise
        machine = self._machine(place, instance)
        try:
            await _answers(machine, patience)
        except BaseException:
            await finish(self.destroy(machine))
            raise
        return machine

    async def destroy(self, machine: Machine) -> None:
        """Stop the VM and give everything back."""
        await self.stop(machine)
        await self.clear(machine)

    async def stop(self, machine: Machine) -> None:
        """Stop the VM; its place is still to be cleared."""
        await machine.guest.close()
        await machine.instance.stop()

    async def clear(self, machine: Machine) -> None:
        """Give back the place of a VM that has ended: its folder is removed, its network slot wiped."""
        await self._give_back(machine.place)

    async def leave(self, machine: Machine) -> None:
        """Let go of a machine, which goes on as it is, for the next server.

        What fails is raised, after all the rest has been let go of.
        """
        async with contextlib.AsyncExitStack() as steps:  # the last one is taken first: the VM needs its slot
            steps.push_async_callback(machine.guest.close)
            steps.push_async_callback(machine.instance.leave)
            steps.push_async_callback(self._network.leave, machine.place.slot)


async def unless_full(machine: Machine, asked: Coroutine[Any, Any, None]) -> None:
    """Ask the guest of a machine that has begun to run; its answer can't come while it stands still.

    Raises NoSpace as soon as it does, so that nobody waits for a guest that waits for room.
    """
    answer, full = asyncio.ensure_future(asked), asyncio.ensure_future(machine.instance.no_space.wait())
    try:
        await asyncio.wait((answer, full), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise NoSpace("the VM stands still because the host's disk is full: make room, then try again")
        answer.result()
    finally:
        with contextlib.suppress(AenvError):
            await cancel(answer, full)


async def _answers(machine: Machine, patience: float) -> None:
    """Wait for the agent of a booting VM, or for the VM's end: its disk may hold no system any more."""
    healthy = asyncio.ensure_future(machine.guest.wait_healthy(patience))
    try:
        waited: set[asyncio.Future[Any]] = {healthy, machine.instance.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not healthy.done():
            raise RuntimeFailure(f"the VM ended while it booted: {machine.instance.ended.result()}")
        healthy.result()
    finally:
        await cancel(healthy)


def identity(sandbox: Sandbox) -> InitRequest:
    """What a restored guest must be told before a client can reach it: time and entropy come with it."""
    return InitRequest(
        sandbox_id=sandbox.id,
        template_id=sandbox.template_id,
        access_token=sandbox.envd_token or "",
        env_vars={**sandbox.defaults.env, **sandbox.env},
        hostname=sandbox.id,
        default_user=sandbox.defaults.user,
        default_workdir=sandbox.defaults.workdir,
    )
