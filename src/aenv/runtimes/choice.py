"""Which runtime this host gets, with the network and the root file system that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from aenv.images.bundle import build_bundle
from aenv.images.debian import base_recipe, build_base
from aenv.images.progress import Progress
from aenv.network.base import NetworkPool
from aenv.network.fake import FakeSlotPool
from aenv.network.pool import SlotPool
from aenv.runtimes.base import Runtime
from aenv.runtimes.fake import FakeRuntime
from aenv.runtimes.qemu.runtime import QemuRuntime
from aenv.settings import Settings


@dataclass(frozen=True)
class Chosen:
    """A runtime and what goes with it."""

    runtime: Runtime
    network: NetworkPool
    base_image: Path


async def choose_runtime(settings: Settings, progress: Progress) -> Chosen:
    """The runtime that the settings ask for, made ready: guest bundle and base image are built if missing.

    `auto` is QEMU, the only one so far; it uses KVM where a guest really runs under it.
    """
    image = settings.images_dir.resolve() / f"base-{base_recipe()}-{settings.disk_mib}.ext4"
    if settings.runtime == "fake":
        return Chosen(FakeRuntime(), FakeSlotPool(), image)
    envd = Path(str(files("aenv.guest") / "envd"))
    bundle = await build_bundle(settings.bundle_dir.resolve(), envd, progress=progress)
    await build_base(image, disk_mib=settings.disk_mib, progress=progress)
    network = SlotPool(
        tag=settings.tag,
        slot_network=settings.slot_network,
        veth_network=settings.veth_network,
        prepared=settings.prepared_slots,
    )
    runtime = await QemuRuntime.create(
        bundle, accel=settings.accel, open_tap=network.open_tap, dns=settings.dns
    )
    return Chosen(runtime, network, image)
