"""Fixtures of the VM tests. They need root, QEMU and the packages that the guest bundle is made from.

The bundle and the root file system are kept in the folder `AENV_TEST_CACHE` if that is set, else made for
the session (the kernel is then downloaded anew). A boot takes seconds under emulation: it happens once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal, cast

import pytest

from aenv.images.bundle import GuestBundle
from aenv.node import Node
from aenv.runtimes.qemu.runtime import QemuRuntime
from aenv.settings import Settings
from tests.vm.apart import Parts, RemoteNode
from tests.vm.support import (
    DISK_MIB,
    MEMORY_MIB,
    SLOTS,
    VETHS,
    Lab,
    Prepared,
    build_parts,
    open_files,
    own_state,
)


@pytest.fixture(scope="session")
def vm_folder() -> Iterator[Path]:
    """The session's folder for everything large, removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("virtual machines with a network need root")
    with tempfile.TemporaryDirectory(prefix="aenv-vm-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def parts(vm_folder: Path) -> tuple[GuestBundle, Path]:
    """The guest bundle and a root file system."""
    cache = Path(os.environ.get("AENV_TEST_CACHE", vm_folder / "cache"))
    return asyncio.run(build_parts(cache))


@pytest.fixture(scope="session")
def prepared(vm_folder: Path, parts: tuple[GuestBundle, Path]) -> Prepared:
    """Boot once with each number of vCPUs and capture."""
    bundle, image = parts

    async def prepare() -> Prepared:
        folder = vm_folder / "prepared"
        folder.mkdir()
        lab = await Lab.open(folder, bundle, "auto")
        try:
            captures = {}
            for cpu_count in (1, 2):
                instance = await lab.boot(image, cpu_count)
                captures[cpu_count] = await lab.capture(instance)
                await lab.end(instance)
            accel = cast('Literal["kvm", "tcg"]', lab.runtime.identity.cpu.split("/")[0])
            return Prepared(accel, bundle, image, captures)
        finally:
            await lab.close()

    return asyncio.run(prepare())


@pytest.fixture(scope="session")
def base(vm_folder: Path, parts: tuple[GuestBundle, Path]) -> Parts:
    """A home in which the base template is made."""
    bundle, image = parts
    home = vm_folder / "base"
    settings = Settings(
        home=home,
        port=0,
        cpu_count=1,
        memory_mib=MEMORY_MIB,
        disk_mib=DISK_MIB,
        hot_vms=0,
        bare_vms=0,
        stopped_vms=2,
        prepared_slots=1,
        metrics_interval=0,
        reserve_mib=1,
        slot_network=SLOTS,
        veth_network=VETHS,
    )
    made = Parts(settings, bundle)
    made.image.parent.mkdir(parents=True)
    shutil.copyfile(image, made.image)
    node = RemoteNode(made)
    accel = node.call(_accelerator)
    node.stop()
    return Parts(settings.model_copy(update={"accel": accel}), bundle)


async def _accelerator(node: Node) -> str:
    assert isinstance(node.runtime, QemuRuntime)
    return node.runtime.identity.cpu.partition("/")[0]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test leaves processes, descriptors, namespaces, links and mounts as they were."""
    before, had = own_state(), open_files()
    yield
    deadline = time.monotonic() + 5
    while (own_state() != before or open_files() > had) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert own_state() == before
    assert open_files() <= had  # fewer are fine: something of an earlier test was closed


@pytest.fixture
async def lab(prepared: Prepared, vm_folder: Path, nothing_left: None) -> AsyncIterator[Lab]:
    """An empty laboratory; what a test leaves alive is ended."""
    folder = Path(tempfile.mkdtemp(dir=vm_folder))
    laboratory = await Lab.open(folder, prepared.bundle, prepared.accel)
    try:
        yield laboratory
    finally:
        await laboratory.close()
        shutil.rmtree(folder)
