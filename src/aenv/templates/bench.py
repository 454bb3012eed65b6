"""The one VM that a build has at a time. It is no sandbox: nobody sees it, but it counts as one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from aenv.errors import LimitReached, Overloaded
from aenv.guest.client import InitRequest
from aenv.runtimes.base import BootSpec, Capture, Resources
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.tasks import finish
from aenv.templates.build_log import BuildLog
from aenv.templates.context import Context

T = TypeVar("T")

GROUP = "build"
"""Starts of builds wait behind each other, and take turns with others."""

RETRY_SECONDS = 5.0
"""When a start that there was no room for is tried again, if the refusal doesn't say."""


class Bench:
    """An async context manager at whose end there is no machine."""

    def __init__(self, core: Core, name: str, log: BuildLog) -> None:
        self.machine: Machine | None = None
        self._core = core
        self._name = name
        self._log = log
        self._room = ExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self.clear())

    async def boot(self, disk: Capture, resources: Resources, context: Context) -> Machine:
        """Boot a machine of this size from a disk, in the place of the one there was."""
        spec = BootSpec(disk, resources)
        machine = await self._place(resources, lambda: self._core.starter.boot(spec, group=GROUP))
        await machine.guest.init(
            InitRequest(
                sandbox_id=self._name,
                template_id=self._name,
                env_vars=context.env,
                hostname="build",
                default_user=context.user,
                default_workdir=context.workdir,
            )
        )
        return machine

    async def restore(self, capture: Capture) -> Machine:
        """A frozen machine in a captured state, in the place of the one there was."""
        return await self._place(capture.resources, lambda: self._core.starter.restore(capture, group=GROUP))

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
