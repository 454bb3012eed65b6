"""What the rest of the system asks of a virtual machine monitor (VMM).

A `Runtime` makes `Instance`s: live VM processes. An instance can be frozen and thawed, and captured: a
`Capture` names the files ("layers") and the runtime identity from which a new instance can start. Layers
are opaque here: nothing above this seam knows what is in one.

Life of an instance::

    boot ──▶ running ◀── thaw ──┐
    spawn ─▶ BareVmm ─ load ─▶ frozen ── capture ──▶ frozen
             running ── freeze ─▶
    any ── stop ──▶ ended

A VM outlives the server that started it: the next one finds, adopts or ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aenv.disks.edits import Edit
from aenv.host import MemoryUse
from aenv.network.base import Slot


@dataclass(frozen=True)
class Resources:
    """Size of a virtual machine."""

    cpu_count: int
    memory_mib: int
    disk_mib: int


@dataclass(frozen=True)
class RuntimeIdentity:
    """What must be the same for a capture to be restored.

    `vmm` and `version` name the monitor, `cpu` its CPU model and accelerator (and what else of the host
    is baked into a capture), `kernel` the guest kernel.
    """

    vmm: str
    version: str
    cpu: str
    kernel: str


@dataclass(frozen=True)
class Layer:
    """One immutable file of a capture.

    `role` means something only to the runtime that wrote it, but for its begin: `memory`, `device` or `disk`.
    """

    role: str
    path: Path
    size: int | None = None
    """Bytes when the capture was recorded; None before that."""


@dataclass(frozen=True)
class Capture:
    """An immutable state of a VM: memory, devices and disk, or its disk alone.

    `layers` is in the runtime's own order. Layers inherited from the capture that the instance started
    from appear again with the paths they had, so layers must not be moved while a capture names them.
    """

    identity: RuntimeIdentity
    resources: Resources
    layers: tuple[Layer, ...]
    memory: bool = True
    """Whether memory and devices are in it. Without them it can be booted from, not loaded."""


@dataclass(frozen=True)
class Place:
    """Where an instance lives: its network slot and a folder of its own, both made by the caller.

    The runtime may write anything into `folder`; the caller removes it after `stop`.
    """

    slot: Slot
    folder: Path


@dataclass(frozen=True)
class BootSpec:
    """A boot and the machine's size.

    `disk` is not written to: a root file system (raw ext4), or a capture. Of a capture only the disk is
    used; it may have been made under another version, CPU or guest kernel.
    """

    disk: Path | Capture
    resources: Resources


class Instance(Protocol):
    """One live VM process. Every method raises `RuntimeFailure` if the process has ended."""

    place: Place
    resources: Resources
    pid: int
    """Process id of the VMM, for accounting."""
    ended: asyncio.Future[str]
    """Resolves to the reason, once, when the VMM ends or its guest can't go on (it crashed, say)."""
    no_space: asyncio.Event
    """Set while the VM stands still because the host has no room for what its guest writes.

    The guest hears nothing of it: `thaw` clears this and writes again what couldn't be written, which may
    set it anew. Meanwhile it can be frozen and captured as ever.
    """

    def memory(self) -> MemoryUse:
        """What it holds of the host's memory; nothing if it has ended. Quick, and called in any thread."""

    async def to_foreground(self) -> None:
        """Have as much of the CPU as others, if its VMM was spawned in the background."""

    async def prepare(self) -> None:
        """Do what of a capture can be done while the guest runs, so that it stands still for less time.

        What can't be done now is left to the capture. Idempotent.
        """

    async def freeze(self) -> None:
        """Stop the vCPUs. The guest sees no time pass. Idempotent."""

    async def thaw(self) -> None:
        """Run the vCPUs. Idempotent."""

    async def capture(self, folder: Path, *, thaw: bool = False, memory: bool = True) -> Capture:
        """Write what changed since the start into new layers in `folder` (exists, empty).

        Without `memory` only the disk is captured, as a power cut would leave it: what the guest has not
        flushed is not in it.

        The instance must be frozen, stays frozen and can be thawed afterwards: its disk then goes on in
        a fresh overlay on top of the captured one. On failure the instance is as before and may go on.

        With `thaw` it is thawed by this call, as soon as the state is copied and before all of it is
        written, and also on failure. A request sent to the guest meanwhile waits until then.
        """

    async def compact(self) -> bool:
        """Tighten what earlier captures left below the disk, if that is worth it; False if it isn't.

        In the background: the guest may run, be frozen and captured meanwhile. The next capture names fewer
        layers; earlier ones stay as they are. Raises `RuntimeFailure`, with nothing changed; cancelled, it
        waits until the work has stopped.
        """

    async def stop(self) -> None:
        """End the VM process and wait for it. Idempotent; never raises for a process already gone."""

    async def leave(self) -> None:
        """Let go of the VM, which goes on as it is, for the next server. The instance is of no use then."""


class BareVmm(Protocol):
    """A VMM process that holds a memory base and a network slot, but no sandbox yet."""

    place: Place
    key: str
    ended: asyncio.Future[str]

    def memory(self) -> MemoryUse:
        """What it holds of the host's memory, as of an instance."""

    async def to_foreground(self) -> None:
        """Have as much of the CPU as others, if it was spawned in the background."""

    async def load(self, capture: Capture) -> Instance:
        """Put `capture` (whose key is this one's) into the VMM. The instance is frozen.

        On failure the VMM is stopped and the error raised; it can't be used again.
        """

    async def stop(self) -> None:
        """End the process. Idempotent."""


class Runtime(Protocol):
    """A way to run virtual machines on this host."""

    name: str
    identity: RuntimeIdentity

    async def boot(self, spec: BootSpec, place: Place) -> Instance:
        """Boot from `spec.disk`. The vCPUs run when this returns; envd may not be up yet.

        Raises `RuntimeFailure` for a capture by another kind of runtime.
        """

    async def edit_disk(
        self,
        disk: Capture | None,
        folder: Path,
        edits: Sequence[Edit],
        *,
        disk_mib: int,
        say: Callable[[str], None],
    ) -> Capture:
        """A capture without memory: the disk of another, or an empty file system, changed by `edits`.

        New layers are in `folder` (exists, empty); those of `disk` are only read. Its file system grows to
        `disk_mib`; it can't shrink. Lines that tell how far it is go to `say`. Cancelled, it waits until the
        work has stopped; what is in the folder is then, and after a failure, the caller's to remove.

        Raises InvalidRequest if an edit is refused or there is too little room on the disk, HostNotReady,
        NoSpace, RuntimeFailure.
        """

    async def spawn(self, capture: Capture, place: Place, *, background: bool = False) -> BareVmm:
        """Start a VMM process that can `load` any capture with the same `key` as `capture`.

        In the `background` it, and the instance that it becomes, has little of the CPU while others want it.
        """

    def key(self, capture: Capture) -> str:
        """Captures with equal keys can be loaded by the same bare VMM.

        Raises `RuntimeFailure` if the capture's identity isn't this runtime's, or if it has no memory.
        """

    def held(self, capture: Capture) -> Path | None:
        """The layer that bare VMMs with the capture's key keep open, if any: it takes room until they end.

        Raises `RuntimeFailure` for a capture without memory.
        """

    async def find(self, folder: Path) -> Place:
        """Where the VM of an earlier server that was loaded or booted in `folder` lives.

        Raises `RuntimeFailure`, saying what became of it, if it doesn't live any more; `HostNotReady` if
        the host isn't now as it was for that VM and may be again.
        """

    async def adopt(self, place: Place) -> Instance:
        """Go on with the VM that `find` found: frozen or not, as it was left; thaw it in any case.

        What the earlier server had begun and not finished is undone. On failure the VM is ended and
        `RuntimeFailure` raised.
        """

    async def end_strays(self, workspace: Path, keep: Collection[Path]) -> int:
        """End every VMM that an earlier server left, but for those in the folders `keep`; how many.

        `workspace` is the folder of all instances' folders. Called before anything is started there.
        """

    async def is_wasteful(self, capture: Capture, *, kept: bool) -> bool:
        """Whether the capture is worth the work of `compact`. Raises `RuntimeFailure` if it can't be read.

        `kept`: its instance is kept, and would have to be given up for it.
        """

    async def compact(self, capture: Capture, folder: Path) -> Capture:
        """The same state in fewer or smaller layers; new ones are in `folder` (exists, empty).

        In the background, with the lowest priority. The layers of `capture` aren't touched, and some may be
        in both. Raises `RuntimeFailure`; cancelled, it waits until the work has stopped. What is in the
        folder is then the caller's to remove.
        """

    async def close(self) -> None:
        """Give up what the runtime itself holds. Instances must have been stopped before."""
