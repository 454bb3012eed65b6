"""A VMM process that holds a memory base and a network slot and waits for a state to load."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from aenv.errors import RuntimeFailure
from aenv.full import write_failure
from aenv.host import MemoryUse
from aenv.memory.live import load_memory
from aenv.runtimes.base import Capture, Place
from aenv.runtimes.qemu import adoption
from aenv.runtimes.qemu.compaction import Workshop
from aenv.runtimes.qemu.disk import InstanceDisk
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import QemuLayers
from aenv.runtimes.qemu.process import VmProcess
from aenv.tasks import finish, together

_LOAD_TIMEOUT: Final = 30.0  # seconds for QEMU to take the device state


class QemuBareVmm:
    """A bare VMM of `QemuRuntime`; see `aenv.runtimes.base.BareVmm`.

    QEMU reads the device state from `state`, a file in memory that it inherited under the same number: unlike
    a descriptor passed over the monitor's socket this works on every event loop.
    """

    def __init__(
        self,
        process: VmProcess,
        *,
        key: str,
        key_of: Callable[[Capture], str],
        place: Place,
        state: int,
        workers: Executor,
        workshop: Workshop,
    ) -> None:
        self.key = key
        self.place = place
        self.ended = process.ended
        self._process = process
        self._key_of = key_of
        self._state: int | None = state
        self._state_number = state
        self._workers = workers
        self._workshop = workshop

    def memory(self) -> MemoryUse:
        """What QEMU holds of the host's memory."""
        return self._process.memory()

    async def to_foreground(self) -> None:
        """Have as much of the CPU as others."""
        await self._process.to_foreground()

    async def load(self, capture: Capture) -> QemuInstance:
        """Put `capture` into the VMM; the instance is frozen. On failure the VMM is stopped."""
        try:
            if self._state is None:
                raise RuntimeFailure("this VMM has been used")
            self._process.check()
            if self._key_of(capture) != self.key:
                raise RuntimeFailure("this VMM can't load the capture: its base or its size differs")
            return await self._load(capture, self._state)
        except BaseException as error:
            reason = self.ended.result() if self.ended.done() else None
            await self.stop()
            if isinstance(error, OSError):
                failure = RuntimeFailure(reason) if reason else error
                what, folder = "the capture can't be loaded", self.place.folder
                raise write_failure(what, folder, failure, RuntimeFailure) from error
            raise
        finally:
            self._close_state()

    async def stop(self) -> None:
        """End the process and close all that belongs to it."""
        self._close_state()
        await self._process.stop()

    async def _load(self, capture: Capture, state: int) -> QemuInstance:
        layers = QemuLayers.of(capture)
        await asyncio.to_thread(layers.check_files)
        disk_bytes = capture.resources.disk_mib << 20
        disk = InstanceDisk(self.place.folder, disk_bytes, layers.disk)
        # The memory must be whole before the devices: virtio reads its rings while its state is loaded.
        loop = asyncio.get_running_loop()
        loading = loop.run_in_executor(self._workers, self._load_memory, capture, layers, state)
        await together(loading, disk.attach(self._process))
        await finish(self._load_devices())
        return QemuInstance(
            self._process,
            identity=capture.identity,
            place=self.place,
            resources=capture.resources,
            disk=disk,
            memory=layers.memory_base,
            booted=False,
            frozen=True,
            workers=self._workers,
            workshop=self._workshop,
        )

    def _load_memory(self, capture: Capture, layers: QemuLayers, state: int) -> None:
        os.pwrite(state, layers.device_state.read_bytes(), 0)
        adoption.describe(self.place, capture.identity, capture.resources)
        if layers.memory_delta is not None:
            size = capture.resources.memory_mib << 20
            load_memory(self._process.pid, layers.memory_base, size, layers.memory_delta)

    async def _load_devices(self) -> None:
        await self._process.execute("migrate-incoming", {"uri": f"fd:{self._state_number}"})
        waiting = {self._process.migration, self.ended}
        done, _ = await asyncio.wait(waiting, timeout=_LOAD_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise RuntimeFailure(f"QEMU didn't load the device state in {_LOAD_TIMEOUT:.0f} s")
        self._process.check()
        if self._process.migration.result() != "completed":
            raise RuntimeFailure("QEMU refused the device state")

    def _close_state(self) -> None:
        if self._state is not None:
            os.close(self._state)
            self._state = None
