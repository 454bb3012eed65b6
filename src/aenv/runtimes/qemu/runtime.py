"""`QemuRuntime`: boots images and starts VMM processes for captures."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from aenv.disks.chain import placeholder, root_over
from aenv.disks.editing import edit_new_disk, edit_overlay
from aenv.disks.edits import Edit
from aenv.errors import HostNotReady, InvalidRequest, RuntimeFailure
from aenv.full import write_failure
from aenv.images.bundle import GuestBundle
from aenv.network.base import Slot
from aenv.runtimes.base import BootSpec, Capture, Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu import adoption, leftovers
from aenv.runtimes.qemu.bare import QemuBareVmm
from aenv.runtimes.qemu.command import TB_SIZE_MIB, Machine, arguments
from aenv.runtimes.qemu.compaction import Workshop, compacted, is_wasteful
from aenv.runtimes.qemu.disk import InstanceDisk
from aenv.runtimes.qemu.host import find_qemu, host_cpu, kvm_works
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import DiskLayers, QemuLayers
from aenv.runtimes.qemu.process import VmProcess
from aenv.runtimes.qemu.tsc import measure_tsc_khz
from aenv.tasks import finish

Accel = Literal["auto", "kvm", "tcg"]

_WORKERS: Final = 2
"""Threads that copy memory; each keeps 16 MiB of buffers, and more are not faster."""
_CPUS: Final = {"kvm": "host", "tcg": "max"}
_TSC: Final = re.compile(r"/tsc=(\d+)$")
_TSC_TOLERANCE: Final = 200e-6
"""Each boot of the host measures its TSC anew and is off by some parts in a million."""


class QemuRuntime:
    """See `aenv.runtimes.base.Runtime`. Instances own their processes, it owns the copying threads."""

    name = "qemu"

    def __init__(
        self, machine: Machine, identity: RuntimeIdentity, open_tap: Callable[[Slot], int], *, asked: Accel
    ) -> None:
        self.identity = identity
        self._machine = machine
        self._asked = asked
        self._open_tap = open_tap
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="aenv-memory")
        self._workshop = Workshop()

    @classmethod
    async def create(
        cls,
        bundle: GuestBundle,
        open_tap: Callable[[Slot], int],
        *,
        accel: Accel = "auto",
        tb_size_mib: int = TB_SIZE_MIB,
        dns: str | None = None,
    ) -> QemuRuntime:
        """Look at the host and settle on an accelerator; takes up to 3 s where KVM doesn't work.

        `open_tap` gives a new descriptor of a slot's tap and is called in a thread; `dns` is the guests' name
        server. Raises HostNotReady.
        """
        binary, version = await find_qemu()
        asked = accel
        if accel == "auto":
            accel = "kvm" if await kvm_works(binary, bundle) else "tcg"
        elif accel == "kvm" and not await kvm_works(binary, bundle):
            raise HostNotReady(
                "KVM doesn't run a guest on this host: check /dev/kvm, or use the accelerator tcg"
            )
        tsc_khz = await asyncio.to_thread(measure_tsc_khz) if accel == "tcg" else None
        model = _CPUS[accel]
        cpu = f"tcg/{model}/tsc={tsc_khz}" if accel == "tcg" else f"kvm/{model}/{host_cpu()}"
        identity = RuntimeIdentity("qemu", version, cpu, bundle.identity)
        machine = Machine(binary, accel, model, tb_size_mib, tsc_khz, dns, bundle)
        return cls(machine, identity, open_tap, asked=asked)

    async def boot(self, spec: BootSpec, place: Place) -> QemuInstance:
        """Boot from `spec.disk`; the memory is a file in the instance's folder."""
        disk_bytes = spec.resources.disk_mib << 20
        layers = self._disk_of(spec.disk)
        disk = InstanceDisk(place.folder, disk_bytes, layers)
        memory = place.folder / "memory"

        def prepare() -> dict[str, object]:
            if layers.base.stat().st_size > disk_bytes:
                raise InvalidRequest(
                    f"the image {layers.base} is larger than a disk of {spec.resources.disk_mib} MiB"
                )
            descriptor = os.open(memory, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, spec.resources.memory_mib << 20)
            finally:
                os.close(descriptor)
            adoption.describe(place, self.identity, spec.resources)
            return disk.create()

        try:
            chain = await finish(asyncio.to_thread(prepare))
            process = await self._start(
                spec.resources, place, memory, (chain, root_over(disk.top)), boot=True, state=None
            )
        except OSError as error:
            raise write_failure(
                f"the VM can't be started in {place.folder}", place.folder, error, RuntimeFailure
            ) from error
        return QemuInstance(
            process,
            identity=self.identity,
            place=place,
            resources=spec.resources,
            disk=disk,
            memory=memory,
            booted=True,
            frozen=False,
            workers=self._workers,
            workshop=self._workshop,
        )

    async def edit_disk(
        self,
        disk: Capture | None,
        folder: Path,
        edits: Sequence[Edit],
        *,
        disk_mib: int,
        say: Callable[[str], None],
    ) -> Capture:
        """A raw disk, or one more overlay; see `aenv.runtimes.base.Runtime.edit_disk`."""
        if disk is None:
            layers = DiskLayers(folder / "disk.raw", ())
            await edit_new_disk(layers.base, disk_mib, edits, say)
        else:
            if disk_mib < disk.resources.disk_mib:
                raise InvalidRequest(
                    f"a disk of {disk.resources.disk_mib} MiB can't shrink to {disk_mib} MiB"
                )
            below = self._disk_of(disk)
            target = folder / "disk-0.qcow2"
            layers = DiskLayers(below.base, (*below.overlays, target))
            await edit_overlay(target, (below.base, *below.overlays), disk_mib, edits, say)
        return Capture(self.identity, Resources(0, 0, disk_mib), layers.layers(), memory=False)

    async def spawn(self, capture: Capture, place: Place, *, background: bool = False) -> QemuBareVmm:
        """Start a VMM process that can `load` captures with the key of `capture`."""
        key = self.key(capture)
        layers = QemuLayers.of(capture)
        resources = capture.resources
        nothing = placeholder(resources.disk_mib << 20)
        state = os.memfd_create("device-state", os.MFD_CLOEXEC)
        try:
            size = await asyncio.to_thread(lambda: layers.memory_base.stat().st_size)
            if size != resources.memory_mib << 20:
                raise RuntimeFailure(f"the memory base {layers.memory_base} has {size} bytes: it is damaged")
            disk = (nothing, root_over(str(nothing["node-name"])))
            process = await self._start(
                resources, place, layers.memory_base, disk, boot=False, state=state, background=background
            )
        except OSError as error:
            os.close(state)
            raise write_failure(
                f"the VM can't be started in {place.folder}", place.folder, error, RuntimeFailure
            ) from error
        except BaseException:
            os.close(state)
            raise
        return QemuBareVmm(
            process,
            key=key,
            key_of=self.key,
            place=place,
            state=state,
            workers=self._workers,
            workshop=self._workshop,
        )

    def key(self, capture: Capture) -> str:
        """The memory base and the machine's size. Raises RuntimeFailure for another identity."""
        self._check_identity(capture.identity)
        size = capture.resources
        base = QemuLayers.of(capture).memory_base
        return f"{base}?memory={size.memory_mib}&cpus={size.cpu_count}&disk={size.disk_mib}"

    def held(self, capture: Capture) -> Path:
        """The memory base."""
        return QemuLayers.of(capture).memory_base

    async def find(self, folder: Path) -> Place:
        """The place of the VM of an earlier server; see `aenv.runtimes.base.Runtime.find`.

        Raises HostNotReady if it runs under another accelerator and nobody asked for that: on a busy host
        KVM may seem not to work for once.
        """
        place, identity = await asyncio.to_thread(adoption.find, folder)
        theirs, ours = identity.cpu.split("/")[0], self._machine.accel
        if theirs != ours and self._asked == "auto":
            raise HostNotReady(
                f"a VM of the server before runs under {theirs}, and AENV_ACCEL=auto found {ours} this time; "
                f"the VMs are left as they are: start again in a moment, or set AENV_ACCEL to {theirs} to go "
                f"on with them, to {ours} to end them"
            )
        return place

    async def adopt(self, place: Place) -> QemuInstance:
        """Go on with it. One whose captures this runtime couldn't restore is ended."""
        return await adoption.adopt(place, self._check_identity, self._workers, self._workshop)

    async def end_strays(self, workspace: Path, keep: Collection[Path]) -> int:
        """Kill the other ones, whatever they were doing."""
        return await asyncio.to_thread(leftovers.end_strays, workspace, keep)

    async def is_wasteful(self, capture: Capture, *, kept: bool) -> bool:
        """Many overlays, or a large delta; see `aenv.runtimes.qemu.compaction`."""
        try:
            return await asyncio.to_thread(is_wasteful, capture, kept=kept)
        except OSError as error:
            raise RuntimeFailure(f"the layers of a capture can't be looked at: {error}") from error

    async def compact(self, capture: Capture, folder: Path) -> Capture:
        """Merge overlays, and base and delta; see `aenv.runtimes.base.Runtime.compact`."""
        try:
            return await self._workshop.run(lambda go_on: compacted(capture, folder, go_on))
        except OSError as error:
            raise write_failure(
                f"a capture can't be compacted in {folder}", folder, error, RuntimeFailure
            ) from error

    async def close(self) -> None:
        """End the threads."""
        await self._workshop.close()
        await asyncio.to_thread(self._workers.shutdown)

    async def _start(
        self,
        resources: Resources,
        place: Place,
        memory: Path,
        disk: tuple[dict[str, object], ...],
        *,
        boot: bool,
        state: int | None,
        background: bool = False,
    ) -> VmProcess:
        tap = await finish(asyncio.to_thread(self._open_tap, place.slot), undo=os.close)
        try:
            command = arguments(
                self._machine,
                resources,
                place.slot,
                memory=memory,
                memory_is_shared=boot,
                disk=disk,
                tap=tap,
            )
            command += self._machine.boot_arguments() if boot else ["-S", "-incoming", "defer"]
            passed = [tap] if state is None else [tap, state]
            process = await VmProcess.start(command, place.folder, passed, background=background)
        finally:
            os.close(tap)
        if not boot:
            try:
                events = {"capabilities": [{"capability": "events", "state": True}]}
                await process.execute("migrate-set-capabilities", events)
            except BaseException:
                await process.stop()
                raise
        return process

    def _disk_of(self, source: Path | Capture) -> DiskLayers:
        if isinstance(source, Path):
            return DiskLayers(source, ())
        if source.identity.vmm != self.identity.vmm:
            raise RuntimeFailure(
                f"the disk of a capture made by {source.identity.vmm} can't be booted by qemu"
            )
        return DiskLayers.of(source)

    def _check_identity(self, identity: RuntimeIdentity) -> None:
        """Equal but for the guest kernel, which is in the memory and needs no file any more, and for the TSC,
        which may differ by a hair: the guest's clock is then off by as little.
        """
        identity = replace(identity, kernel=self.identity.kernel)
        ours, theirs = _TSC.search(self.identity.cpu), _TSC.search(identity.cpu)
        if ours and theirs and abs(int(ours[1]) - int(theirs[1])) <= int(ours[1]) * _TSC_TOLERANCE:
            identity = replace(identity, cpu=identity.cpu[: theirs.start()] + ours[0])
        if identity != self.identity:
            raise RuntimeFailure(
                f"the capture was made by {identity} and can't be restored by {self.identity}; "
                "its files can still be used by a new boot"
            )
