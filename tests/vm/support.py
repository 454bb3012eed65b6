"""A small VM for tests: what it is made of, and a laboratory that starts, drives and ends instances of it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO, Final, Literal

import aiohttp
import numpy as np
from numpy.typing import NDArray

from aenv.guest.client import EnvdClient
from aenv.images.bundle import GuestBundle, build_bundle
from aenv.images.progress import QuietProgress
from aenv.memory.delta import open_delta
from aenv.memory.pages import find_mapping, numbers_of
from aenv.memory.transfer import WORDS
from aenv.network import namespaces
from aenv.network.base import Slot
from aenv.network.pool import SlotPool
from aenv.runtimes.base import BootSpec, Capture, Place, Resources
from aenv.runtimes.qemu.bare import QemuBareVmm
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import QemuLayers
from aenv.runtimes.qemu.runtime import QemuRuntime

SLOTS: Final = IPv4Network("10.213.0.0/24")
VETHS: Final = IPv4Network("10.214.0.0/23")
TAG: Final = f"{os.getpid() & 0xFFFF:04x}"
WORKLOAD_PORT: Final = 7000
ECHO_PORT: Final = 7001
DISK_MIB: Final = 1024
MEMORY_MIB: Final = 192
_REPOSITORY: Final = Path(__file__).parents[2]
_BOOT: Final = 60.0  # seconds, on a busy machine


@dataclass(frozen=True)
class Prepared:
    """What all tests of a session share. `captures` by number of vCPUs: booted, with the workload running."""

    accel: Literal["kvm", "tcg"]
    bundle: GuestBundle
    image: Path
    captures: dict[int, Capture]


def go_build(source: Path, target: Path) -> None:
    """Compile a static Go program."""
    beside = Path(sys.executable).parent / "go"
    go = str(beside) if beside.exists() else "go"
    subprocess.run(
        [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(target), "."],
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
        check=True,
    )


async def build_parts(cache: Path) -> tuple[GuestBundle, Path]:
    """The guest bundle, and a root file system that holds the workload and nothing else."""
    lock = await asyncio.to_thread(_locked, cache)
    try:
        await asyncio.to_thread(go_build, _REPOSITORY / "guest", cache / "envd")
        bundle = await build_bundle(cache / "bundle", cache / "envd", progress=QuietProgress())
        return bundle, await asyncio.to_thread(_build_image, cache)
    finally:
        lock.close()


def _locked(cache: Path) -> IO[str]:
    cache.mkdir(parents=True, exist_ok=True)
    lock = (cache / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _build_image(cache: Path) -> Path:
    root = cache / "root"
    for folder in ("bin", "data", "dev", "etc", "proc", "root", "run", "sys", "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    go_build(Path(__file__).parent / "workload", root / "bin/workload")
    image, new = cache / "image.ext4", cache / "image.new"
    new.unlink(missing_ok=True)
    options = ["-t", "ext4", "-F", "-q", "-E", "lazy_itable_init=1", "-J", "size=8", "-d", str(root)]
    subprocess.run(["mke2fs", *options, str(new), f"{DISK_MIB}M"], check=True)
    new.rename(image)
    return image


def own_state() -> dict[str, object]:
    """All that a test could leave behind, without what other programs on this host do meanwhile."""
    return {
        "namespaces": [name for name in namespaces.names() if TAG in name],
        "links": sorted(name for _, name in socket.if_nameindex() if TAG in name),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if TAG in line],
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
    }


def open_files() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Lab:
    """Makes instances with real network slots in `folder`; whatever still lives is ended by `close`."""

    def __init__(self, folder: Path, pool: SlotPool, runtime: QemuRuntime) -> None:
        self.folder = folder
        self.pool = pool
        self.runtime = runtime
        # A restored guest knows no connection of its past, so none is kept.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        self._numbers = 0
        self._living: list[QemuInstance | QemuBareVmm] = []
        self._slots: list[Slot] = []

    @classmethod
    async def open(cls, folder: Path, bundle: GuestBundle, accel: Literal["auto", "kvm", "tcg"]) -> Lab:
        """A laboratory with a pool of its own."""
        pool = SlotPool(TAG, prepared=1, slot_network=SLOTS, veth_network=VETHS)
        runtime = await QemuRuntime.create(bundle, pool.open_tap, accel=accel)
        await pool.start()
        return cls(folder, pool, runtime)

    async def close(self) -> None:
        """End everything."""
        for thing in list(self._living):
            await self.end(thing)
        await self.http.close()
        await self.runtime.close()
        await self.pool.close()

    def new_folder(self) -> Path:
        """An empty folder, for an instance or a capture."""
        self._numbers += 1
        folder = self.folder / str(self._numbers)
        folder.mkdir()
        return folder

    async def place(self) -> Place:
        """A slot and a folder."""
        return Place(await self.pool.acquire(), self.new_folder())

    async def boot(self, disk: Path | Capture, cpu_count: int) -> QemuInstance:
        """A boot, with the workload running."""
        resources = Resources(cpu_count, MEMORY_MIB, DISK_MIB)
        instance = await self.runtime.boot(BootSpec(disk, resources), await self.place())
        self._living.append(instance)
        envd = EnvdClient(f"http://{instance.place.slot.host_address}:49983", user="root")
        async with envd:
            await envd.wait_healthy(_BOOT)
            (await envd.processes.start("/bin/workload")).close()
        await self.ask(instance, "GET", "/count")
        return instance

    async def spawn(self, capture: Capture) -> QemuBareVmm:
        """A bare VMM."""
        vmm = await self.runtime.spawn(capture, await self.place())
        self._living.append(vmm)
        return vmm

    async def load(self, vmm: QemuBareVmm, capture: Capture) -> QemuInstance:
        """A frozen instance."""
        instance = await vmm.load(capture)
        self._living[self._living.index(vmm)] = instance
        return instance

    async def restore(self, capture: Capture) -> QemuInstance:
        """A frozen instance in a new VMM."""
        return await self.load(await self.spawn(capture), capture)

    def own(self, instance: QemuInstance) -> None:
        """End this instance too when the laboratory closes."""
        self._living.append(instance)

    def forget(self, instance: QemuInstance) -> None:
        """Leave this instance to the caller."""
        self._living.remove(instance)

    async def capture(self, instance: QemuInstance) -> Capture:
        """Freeze and capture."""
        await instance.prepare()
        await instance.freeze()
        return await instance.capture(self.new_folder())

    async def end(self, thing: QemuInstance | QemuBareVmm) -> None:
        """Stop an instance and give back its place."""
        await thing.stop()
        await self.pool.release(thing.place.slot)
        shutil.rmtree(thing.place.folder, ignore_errors=True)
        self._living.remove(thing)

    async def ask(
        self,
        instance: QemuInstance,
        method: str,
        path: str,
        data: bytes | None = None,
        timeout: float = _BOOT,
    ) -> bytes:
        """Ask the workload in a guest; it is asked again while it doesn't listen yet."""
        url = f"http://{instance.place.slot.host_address}:{WORKLOAD_PORT}{path}"
        deadline = time.monotonic() + timeout
        while True:
            limits = aiohttp.ClientTimeout(total=max(0.1, deadline - time.monotonic()), sock_connect=0.5)
            try:
                async with self.http.request(method, url, data=data, timeout=limits) as response:
                    content = await response.read()
                    assert response.status == 200, content.decode()
                    return content
            except (aiohttp.ClientConnectionError, TimeoutError):
                if time.monotonic() > deadline or instance.ended.done():
                    raise
                await asyncio.sleep(0.01)


def guest_memory(instance: QemuInstance, base: Path) -> NDArray[np.uint8]:
    """The guest's memory as it is now, from the host."""
    size = instance.resources.memory_mib << 20
    address = find_mapping(instance.pid, base.stat(), size)
    with Path(f"/proc/{instance.pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        content = bytearray()
        while len(content) < size:
            content += memory.read(min(8 << 20, size - len(content)))
    return np.frombuffer(content, dtype=np.uint8)


def captured_memory(capture: Capture) -> NDArray[np.uint8]:
    """The memory that a capture describes: its base with its delta."""
    layers = QemuLayers.of(capture)
    memory = np.fromfile(layers.memory_base, dtype=np.uint64).reshape(-1, WORDS)
    if layers.memory_delta is not None:
        buffer = np.empty((1024, WORDS), dtype=np.uint64)
        with open_delta(layers.memory_delta, memory.nbytes) as delta:
            for ranges, pages in delta.pieces(buffer):
                memory[numbers_of(ranges)] = pages
    return memory.reshape(-1).view(np.uint8)


async def echo_through(address: str, count: int) -> int:
    """Send datagrams to the guest's echo server; how many of them came back."""

    def run() -> int:
        answers = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(0.3)
            client.connect((address, ECHO_PORT))
            for number in range(count):
                message = number.to_bytes(4, "little") * 250
                try:
                    client.send(message)
                    while client.recv(2000) != message:
                        pass  # the answer to one before, which came late
                    answers += 1
                except OSError:  # no answer in time, or the guest is gone
                    continue
        return answers

    return await asyncio.to_thread(run)
