"""QEMU's command line: the machine that a guest sees, which every restore must build the same way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aenv.disks.chain import ROOT, THROTTLE_GROUP, Node
from aenv.images.bundle import GuestBundle
from aenv.network.base import Slot
from aenv.runtimes.base import Resources

_SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_MACHINE: Final = "microvm,acpi=on,rtc=on,pcie=off,suppress-vmdesc=on,memory-backend=ram"
CONSOLE_BYTES: Final = 65536
"""So much of the serial console is kept, for who looks for a fault: `ringbuf-read` on QEMU's monitor."""

TB_SIZE_MIB: Final = 48
"""Room for code that the emulator has translated. A restore, `/init` and a shell need 35 MiB of it: with
less, QEMU throws everything away in the middle of a first command. What isn't used costs nothing.
"""

_KERNEL_ARGUMENTS: Final = "console=ttyS0 quiet panic=-1 reboot=t aenv.root=/dev/vda"
_TCG_KERNEL_ARGUMENTS: Final = (
    "tsc=reliable norandmaps mitigations=off init_on_alloc=0 lsm=landlock,yama audit=0 "
    "randomize_kstack_offset=off nokaslr psi=0 nowatchdog transparent_hugepage=madvise"
)
"""A trade under emulation only: half the start-up time for defences and statistics that a guest can live
without. Each piece of kernel code that is run has to be translated first, and kept, in every VM.
"""


@dataclass(frozen=True)
class Machine:
    """What all VMs of one runtime share. `tsc_khz` is set for emulation only."""

    binary: str
    accel: str
    cpu: str
    tb_size_mib: int
    tsc_khz: int | None
    dns: str | None
    bundle: GuestBundle

    @property
    def acceleration(self) -> str:
        """The value of `-accel`."""
        return "kvm" if self.accel == "kvm" else f"tcg,thread=multi,tb-size={self.tb_size_mib}"

    def boot_arguments(self) -> list[str]:
        """What only a first boot has: kernel, initramfs and the kernel's arguments."""
        words = [_KERNEL_ARGUMENTS]
        if self.dns is not None:
            words.append(f"aenv.dns={self.dns}")
        if self.tsc_khz is not None:
            words.append(f"{_TCG_KERNEL_ARGUMENTS} tsc_early_khz={self.tsc_khz}")
        kernel, initrd = str(self.bundle.kernel), str(self.bundle.initrd)
        return ["-kernel", kernel, "-initrd", initrd, "-append", " ".join(words)]


def arguments(
    machine: Machine,
    resources: Resources,
    slot: Slot,
    *,
    memory: Path,
    memory_is_shared: bool,
    disk: tuple[Node, ...],
    tap: int,
) -> list[str]:
    """The command line of a VM with its memory in the file `memory` and its network on the descriptor `tap`.

    `disk` are the nodes of its disk, lowest first; the last one is named `ROOT`. A shared memory is written
    to the file, another one is the process's own once written.
    """
    backend: Node = {
        "qom-type": "memory-backend-file",
        "id": "ram",
        "size": resources.memory_mib << 20,
        "mem-path": str(memory),
        "share": memory_is_shared,
    }
    command = [machine.binary, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-sandbox", _SANDBOX, "-M", _MACHINE, "-global", "migration.send-configuration=off"]
    command += ["-accel", machine.acceleration, "-cpu", machine.cpu]
    command += ["-smp", str(resources.cpu_count), "-m", f"{resources.memory_mib}M"]
    command += ["-object", json.dumps(backend)]
    command += ["-object", f"throttle-group,id={THROTTLE_GROUP}"]
    for node in disk:
        command += ["-blockdev", json.dumps(node)]
    command += ["-device", f"virtio-blk-device,id=disk0,drive={ROOT}"]
    command += ["-netdev", f"tap,id=net0,fd={tap}"]
    command += ["-device", f"virtio-net-device,id=nic0,netdev=net0,mac={slot.guest_mac}"]
    command += ["-chardev", f"ringbuf,id=console,size={CONSOLE_BYTES}", "-serial", "chardev:console"]
    return command
