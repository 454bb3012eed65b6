"""A live VM: freeze, thaw and capture."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from aenv.errors import RuntimeFailure
from aenv.memory.flatten import copy_base
from aenv.memory.live import save_memory
from aenv.runtimes.base import Capture, Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu.blocking import to_the_end, together
from aenv.runtimes.qemu.disk import InstanceDisk
from aenv.runtimes.qemu.layers import QemuLayers, publish
from aenv.runtimes.qemu.process import VmProcess


class QemuInstance:
    """An instance of `QemuRuntime`; see `aenv.runtimes.base.Instance`.

    `memory` is the file that its memory maps: after a load the base, which other VMs share and only this
    process's own pages differ from; after a boot (`booted`) a file of its own that all writes go to. A
    capture then copies that whole file into a new base instead of writing a delta. `workers` are the
    threads that copy memory.
    """

    def __init__(
        self,
        process: VmProcess,
        *,
        identity: RuntimeIdentity,
        place: Place,
        resources: Resources,
        disk: InstanceDisk,
        memory: Path,
        booted: bool,
        workers: Executor,
    ) -> None:
        self.place = place
        self.resources = resources
        self.pid = process.pid
        self.ended = process.ended
        self._process = process
        self._identity = identity
        self._disk = disk
        self._memory = memory
        self._booted = booted
        self._workers = workers
        self._frozen = not booted
        self._busy = asyncio.Lock()

    async def freeze(self) -> None:
        """Stop the vCPUs."""
        async with self._busy:
            self._process.check()
            if self._frozen:
                return
            with contextlib.suppress(OSError, RuntimeFailure):  # a capture will try again and report it
                await self._disk.prepare(self._process)
            self._process.check()
            await self._process.execute("stop")
            self._frozen = True

    async def thaw(self) -> None:
        """Run the vCPUs."""
        async with self._busy:
            self._process.check()
            if self._frozen:
                await self._process.execute("cont")
                self._frozen = False

    async def capture(self, folder: Path) -> Capture:
        """Write memory, device state and disk into `folder`; see `aenv.runtimes.base.Instance.capture`."""
        async with self._busy:
            self._process.check()
            if not self._frozen:
                raise RuntimeFailure("a capture needs a frozen instance")
            try:
                return await self._capture(folder)
            except (OSError, RuntimeFailure) as error:
                self._process.check()
                if isinstance(error, RuntimeFailure):
                    raise
                raise RuntimeFailure(f"the capture can't be written to {folder}: {error}") from error

    async def stop(self) -> None:
        """End the process, reap it and close all that belongs to it."""
        await self._process.stop()

    async def console(self) -> str:
        """The end of what the guest's kernel and agent wrote to the serial console."""
        answer = await self._process.execute("ringbuf-read", {"device": "console", "size": 65536})
        return str(answer)

    async def _capture(self, folder: Path) -> Capture:
        state = folder / "device-state"
        loop = asyncio.get_running_loop()
        saving = loop.run_in_executor(self._workers, self._save_memory, folder)
        memory, _ = await together(saving, self._save_devices(state))
        await self._disk.seal(self._process)
        overlays = await to_the_end(asyncio.to_thread(self._publish_overlays, folder))
        layers = replace(memory, device_state=state, disk_overlays=overlays)
        return Capture(self._identity, self.resources, layers.layers())

    def _save_memory(self, folder: Path) -> QemuLayers:
        base, delta = self._memory, None
        if self._booted:
            base = folder / "memory-base"
            copy_base(self._memory, base)
        else:
            delta = folder / "memory-delta"
            save_memory(self.pid, self._memory, self.resources.memory_mib << 20, delta)
        return QemuLayers(base, delta, Path(), self._disk.base, ())

    async def _save_devices(self, state: Path) -> None:
        # Not "live": that is for a source that migrates away, and would give up its disk.
        await self._process.execute("xen-save-devices-state", {"filename": str(state), "live": False})

    def _publish_overlays(self, folder: Path) -> tuple[Path, ...]:
        published = []
        for path in self._disk.sealed:
            target = folder / path.name
            publish(path, target)
            published.append(target)
        return (*self._disk.inherited, *published)
