"""A live VM: freeze, thaw and capture."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor
from pathlib import Path

from aenv.errors import RuntimeFailure, VmmUnresponsive
from aenv.full import free_bytes, write_failure
from aenv.host import MemoryUse
from aenv.memory.flatten import copy_base
from aenv.memory.live import MemoryCopy, find_memory, save_memory
from aenv.runtimes.base import Capture, Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu.compaction import Workshop
from aenv.runtimes.qemu.disk import InstanceDisk, Merged
from aenv.runtimes.qemu.layers import DiskLayers, QemuLayers, publish
from aenv.runtimes.qemu.process import VmProcess
from aenv.tasks import finish, together


class QemuInstance:
    """An instance of `QemuRuntime`; see `aenv.runtimes.base.Instance`.

    `memory` is the file that its memory maps: after a load the base, which other VMs share and only this
    process's own pages differ from; after a boot (`booted`) a file of its own that all writes go to. A
    capture then copies that whole file into a new base instead of writing a delta. `frozen` says whether its
    vCPUs are stopped now. `workers` are the threads that copy memory, `workshop` is for work that can wait.
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
        frozen: bool,
        workers: Executor,
        workshop: Workshop,
    ) -> None:
        self.place = place
        self.resources = resources
        self.pid = process.pid
        self.ended = process.ended
        self.no_space = process.no_space
        self._process = process
        self._identity = identity
        self._disk = disk
        self._memory = memory
        self._address: int | None = None
        """Where the process maps the memory, once that is known."""
        self._booted = booted
        self._workers = workers
        self._workshop = workshop
        self._frozen: bool | None = frozen
        """None while QEMU may still stop them, as it hasn't answered."""
        self._busy = asyncio.Lock()
        self._compacting = asyncio.Lock()

    def memory(self) -> MemoryUse:
        """What QEMU holds of the host's memory; after a boot the guest's is in a file, but its own."""
        use = self._process.memory()
        return MemoryUse(use.private + use.shared) if self._booted else use

    async def to_foreground(self) -> None:
        """Have as much of the CPU as others."""
        await self._process.to_foreground()

    async def prepare(self) -> None:
        """Open the next overlay, and find the memory."""
        async with self._busy:
            with contextlib.suppress(OSError, RuntimeFailure):  # a capture will try again and report it
                await self._disk.prepare(self._process)
                if self._address is None and not self._booted:
                    self._address = await asyncio.to_thread(find_memory, *self._mapping())

    async def freeze(self) -> None:
        """Stop the vCPUs."""
        async with self._busy:
            self._process.check()
            if self._frozen:
                return
            await finish(self._stop_vcpus())

    async def thaw(self) -> None:
        """Run the vCPUs."""
        async with self._busy:
            self._process.check()
            await self._thaw()

    async def capture(self, folder: Path, *, thaw: bool = False, memory: bool = True) -> Capture:
        """Write memory, device state and disk into `folder`; see `aenv.runtimes.base.Instance.capture`."""
        async with self._busy:
            self._process.check()
            if not self._frozen:
                raise RuntimeFailure("a capture needs a frozen instance")
            try:
                return await self._capture(folder, thaw=thaw, memory=memory)
            except VmmUnresponsive:
                raise
            except (OSError, RuntimeFailure) as error:
                self._process.check()
                raise write_failure(
                    f"the capture can't be written to {folder}", folder, error, RuntimeFailure
                ) from error
            finally:
                if thaw and not self.ended.done():
                    await self._thaw()

    async def compact(self) -> bool:
        """Merge overlays that the disk stands on; see `aenv.runtimes.base.Instance.compact`."""
        async with self._compacting:
            self._process.check()
            try:
                merged = await self._disk.merge(self._workshop)
            except OSError as error:
                folder = self.place.folder
                what = f"a disk can't be compacted in {folder}"
                raise write_failure(what, folder, error, RuntimeFailure) from error
            if merged is None:
                return False
            await finish(self._exchange(merged))
            return True

    async def stop(self) -> None:
        """End the process, reap it and close all that belongs to it."""
        await self._process.stop()

    async def leave(self) -> None:
        """Let go of the process and close all that belongs to it here."""
        await self._process.leave()

    async def _exchange(self, merged: Merged) -> None:
        async with self._busy:
            await self._disk.exchange(self._process, merged)

    async def _thaw(self) -> None:
        if self._frozen is not False or self.no_space.is_set():
            await finish(self._cont())

    async def _cont(self) -> None:
        stalled = self.no_space.is_set()
        self.no_space.clear()  # before, as the event may come before the answer does
        try:
            await self._process.execute("cont")
            self._frozen = False
        except VmmUnresponsive:
            self._frozen = False  # QEMU does in order what it is told: it goes on as soon as it can
            raise
        except RuntimeFailure:
            if stalled:
                self.no_space.set()
            raise

    async def _stop_vcpus(self) -> None:
        self._frozen = None
        await self._process.execute("stop")
        self._frozen = True

    async def _capture(self, folder: Path, *, thaw: bool, memory: bool) -> Capture:
        loop = asyncio.get_running_loop()
        copy = None
        if memory:
            copying = loop.run_in_executor(self._workers, self._save_memory, folder, thaw)
            copy, _ = await together(copying, self._save_devices(folder / "device-state"))
        await self._disk.seal(self._process)
        overlays = self._disk.sealed
        if thaw:
            await self._thaw()
        disk = await finish(loop.run_in_executor(self._workers, self._finish, folder, copy, overlays))
        layers = self._whole(folder, disk).layers() if memory else disk.layers()
        return Capture(self._identity, self.resources, layers, memory)

    def _save_memory(self, folder: Path, thaw: bool) -> MemoryCopy | None:
        """Write the memory, in a thread, or copy what can be written while the guest runs again.

        What may find no room is written now: were the disk sealed before that fails, each attempt would
        leave one more overlay.
        """
        if self._booted:
            copy_base(self._memory, folder / "memory-base")
            return None
        copy = save_memory(*self._mapping(), folder / "memory-delta", self._address)
        if not isinstance(copy, MemoryCopy):
            return None
        if thaw and free_bytes(folder) > copy.pages.nbytes:
            return copy
        copy.save(folder / "memory-delta")
        return None

    def _mapping(self) -> tuple[int, Path, int]:
        """The process, what it maps and the size."""
        return self.pid, self._memory, self.resources.memory_mib << 20

    def _finish(self, folder: Path, copy: MemoryCopy | None, overlays: tuple[Path, ...]) -> DiskLayers:
        """Write what is left to write, in a thread."""
        if copy is not None:
            copy.save(folder / "memory-delta")
        published = [folder / path.name for path in overlays]
        for path, target in zip(overlays, published, strict=True):
            publish(path, target)
        inherited = self._disk.inherited
        return DiskLayers(inherited.base, (*inherited.overlays, *published))

    def _whole(self, folder: Path, disk: DiskLayers) -> QemuLayers:
        return QemuLayers(
            memory_base=folder / "memory-base" if self._booted else self._memory,
            memory_delta=None if self._booted else folder / "memory-delta",
            device_state=folder / "device-state",
            disk=disk,
        )

    async def _save_devices(self, state: Path) -> None:
        # Not "live": that is for a source that migrates away, and would give up its disk.
        await self._process.execute("xen-save-devices-state", {"filename": str(state), "live": False})
