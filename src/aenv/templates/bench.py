"""The one VM that a build has at a time. It is no sandbox: nobody sees it, but it counts as one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from aenv.errors import LimitReached, Overloaded, PauseRefused
from aenv.guest.client import InitRequest
from aenv.runtimes.base import BootSpec, Capture, Resources
from aenv.sandboxes import capturing
from aenv.sandboxes.capturing import Captured
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.tasks import finish
from aenv.templates.build_log import BuildLog
from aenv.templates.commands import while_alive
from aenv.templates.context import Context

log = structlog.get_logger()

GROUP = "build"
"""Starts of builds wait behind each other, and take turns with others."""

PATIENCE = 180.0
"""Seconds that a guest has to answer outside of a step. Nobody waits for a build as for a sandbox, and under
emulation on a busy host everything takes its time."""

CAPTURE_ATTEMPTS = 5
"""How often a guest is asked to be still for a capture."""

RETRY_SECONDS = 5.0
"""When a start that there was no room for is tried again, if the refusal doesn't say."""


class Bench:
    """An async context manager at whose end there is no machine."""

    def __init__(self, core: Core, name: str, build_log: BuildLog) -> None:
        self.machine: Machine | None = None
        self._core = core
        self._name = name
        self._log = build_log
        self._room = ExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self.clear())

    async def boot(self, disk: Capture, resources: Resources, context: Context) -> Machine:
        """Boot a machine of this size from a disk, in the place of the one there was."""
        spec, starter = BootSpec(disk, resources), self._core.starter
        machine = await self._place(resources, lambda: starter.boot(spec, group=GROUP, patience=PATIENCE))
        identity = InitRequest(
            sandbox_id=self._name,
            template_id=self._name,
            env_vars=context.env,
            hostname="build",
            default_user=context.user,
            default_workdir=context.workdir,
        )
        await while_alive(machine, machine.guest.init(identity, timeout=PATIENCE))
        return machine

    async def settle(self, capture: Capture, folder: Path) -> Capture:
        """The disk of a captured state, written to `folder`, with what so far only its memory has of it.

        Its processes run for a moment, as the agent knows nobody's word before it has an identity. There is
        no machine then.
        """
        starter = self._core.starter
        machine = await self._place(capture.resources, lambda: starter.restore(capture, group=GROUP))
        await machine.instance.thaw()
        nobody = InitRequest(sandbox_id=self._name, template_id=self._name, access_token="")
        await while_alive(machine, machine.guest.wait_healthy(PATIENCE))
        await while_alive(machine, machine.guest.init(nobody, timeout=PATIENCE))
        await while_alive(machine, _write_out(machine))
        await machine.instance.freeze()
        disk = await machine.instance.capture(folder, memory=False)
        await self.clear()
        return disk

    async def capture_disk(self) -> Captured:
        """The disk of the machine, which goes on."""

        async def take(machine: Machine) -> Captured:
            await machine.instance.compact()  # each step adds a layer
            return await capturing.take_in_passing(machine, self._core.captures, memory=False)

        return await self._capture(take)

    async def capture(self) -> Captured:
        """The machine, which stands still then, with all it has on its disk: it can be booted from, too."""

        async def take(machine: Machine) -> Captured:
            await while_alive(machine, _write_out(machine))
            await machine.guest.unfreeze(timeout=PATIENCE)
            await machine.instance.compact()
            return await capturing.take(machine, self._core.captures, memory=True, require_healthy_guest=True)

        return await self._capture(take)

    async def _capture(self, take: Callable[[Machine], Awaitable[Captured]]) -> Captured:
        """Capture when the guest is ready for it: on a busy host it may not be at once."""
        machine = self.machine
        assert machine is not None  # noqa: S101 -- who captures has booted one
        for _ in range(CAPTURE_ATTEMPTS - 1):
            try:
                return await take(machine)
            except PauseRefused as error:
                log.info("the guest of a build isn't ready for a capture yet", reason=error.message)
                await capturing.release(machine)
        return await take(machine)

    async def clear(self) -> None:
        """End the machine, if there is one."""
        machine, self.machine = self.machine, None
        try:
            if machine is not None:
                await self._core.machines.destroy(machine)
        finally:
            self._room.close()

    async def _place(self, resources: Resources, start: Callable[[], Awaitable[Machine]]) -> Machine:
        """Start a machine, when there is room for it among the sandboxes that run."""
        await self.clear()
        told = False
        while True:
            try:
                self._room.enter_context(self._core.admission.reserve(resources))
                self.machine = await start()
            except (LimitReached, Overloaded) as error:
                self._room.close()
                if not told:
                    self._log.say(f"waiting for room: {error.message}")
                told = True
                await asyncio.sleep(error.retry_after or RETRY_SECONDS)
            else:
                return self.machine


async def _write_out(machine: Machine) -> None:
    """Have the guest put all that it has written on its disk, which then stays as it is."""
    await machine.guest.sync(timeout=PATIENCE)
