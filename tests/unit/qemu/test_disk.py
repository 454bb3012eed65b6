"""What becomes of overlays when QEMU refuses a command, or answers too late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from aenv.disks.qcow2 import create_overlay
from aenv.errors import RuntimeFailure
from aenv.network.fake import FakeSlotPool
from aenv.runtimes.base import Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu.compaction import Workshop
from aenv.runtimes.qemu.disk import InstanceDisk, Merged
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.layers import DiskLayers
from aenv.runtimes.qemu.process import VmProcess

SIZE = 64 << 20
TOO_LATE = RuntimeFailure("QEMU didn't answer for 30 s")


class Vmm:
    """Stands for QEMU: knows which nodes are open and on what each of them stands."""

    def __init__(self, below: Mapping[str, str | None]) -> None:
        self.below = dict(below)
        self.too_late: set[str] = set()
        """Commands that are carried out, but whose answers come too late."""
        self.refused: set[str] = set()
        self.commands: list[str] = []
        self.no_space = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.pid = 0

    def check(self) -> None:
        """It lives."""

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> object:
        self.commands.append(command)
        if command in self.refused:
            raise RuntimeFailure(f"QEMU refused {command}")
        answer = getattr(self, command.replace("-", "_"))(
            **{key.replace("-", "_"): value for key, value in (arguments or {}).items()}
        )
        if command in self.too_late:
            raise TOO_LATE
        return answer

    def blockdev_add(self, *, node_name: str, backing: object = None, **_options: object) -> None:
        self.below[node_name] = backing if isinstance(backing, str) else None

    def blockdev_reopen(self, *, options: list[dict[str, Any]]) -> None:
        for each in options:
            self.below[each["node-name"]] = each["backing"]

    def blockdev_del(self, *, node_name: str) -> None:
        if node_name not in self.below or node_name in self.below.values():
            raise RuntimeFailure(f"{node_name} is in use, or not there")
        del self.below[node_name]

    def query_named_block_nodes(self, *, flat: bool) -> object:
        return [{"node-name": each} for each in self.below]

    def cont(self) -> None:
        """The vCPUs run."""


def _process(vmm: Vmm) -> VmProcess:
    return cast("VmProcess", vmm)


def _made(folder: Path, *numbers: int) -> list[Path]:
    paths = [folder / f"disk-{number}.qcow2" for number in numbers]
    for path in paths:
        create_overlay(path, SIZE)
    return paths


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path.with_name(f"{tmp_path.name}-base.raw")
    path.touch()
    return path


def _disk(folder: Path, base: Path) -> InstanceDisk:
    disk = InstanceDisk(folder, SIZE, DiskLayers(base, ()))
    disk.create()
    return disk


async def _exchange(disk: InstanceDisk, vmm: Vmm) -> Path:
    overlay = disk._new_name()
    create_overlay(overlay.path, SIZE)
    with pytest.raises(RuntimeFailure):
        await disk.exchange(_process(vmm), Merged(overlay, 0, 0))
    return overlay.path


async def test_a_merged_overlay_that_is_in_use_after_all_stays(tmp_path: Path, base: Path) -> None:
    disk, vmm = _disk(tmp_path, base), Vmm({"disk-1": None})
    vmm.too_late.add("blockdev-reopen")
    assert (await _exchange(disk, vmm)).exists()
    assert vmm.below["disk-1"] == "disk-2"


@pytest.mark.parametrize(
    ("command", "how"),
    [("blockdev-add", "refused"), ("blockdev-add", "too_late"), ("blockdev-reopen", "refused")],
)
async def test_one_that_is_not_in_use_goes(tmp_path: Path, base: Path, command: str, how: str) -> None:
    disk, vmm = _disk(tmp_path, base), Vmm({"disk-1": None})
    getattr(vmm, how).add(command)
    assert not (await _exchange(disk, vmm)).exists()
    assert list(vmm.below) == ["disk-1"]


async def test_one_that_qemu_says_nothing_of_stays(tmp_path: Path, base: Path) -> None:
    disk, vmm = _disk(tmp_path, base), Vmm({"disk-1": None})
    vmm.refused |= {"blockdev-reopen", "blockdev-del", "query-named-block-nodes"}
    assert (await _exchange(disk, vmm)).exists()


async def test_overlays_left_behind_are_closed_from_the_top(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands on 12 alone; what was merged into that is open yet, and 13 was never opened."""
    paths = _made(tmp_path, 1, 2, 9, 10, 11, 12, 13, 14)
    below = {"disk-11": None, "disk-9": "disk-11", "disk-10": "disk-9", "disk-2": None, "disk-1": None}
    vmm = Vmm({**below, "disk-12": None, "disk-14": "disk-12", "other": "disk-1"})
    chain = {"disk-14": paths[7], "disk-12": paths[5], "base": base}
    monkeypatch.setattr("aenv.runtimes.qemu.disk.read_chain", lambda _stats, _nodes: chain)
    monkeypatch.setattr(vmm, "query_blockstats", lambda: None, raising=False)
    disk = await InstanceDisk.adopt(_process(vmm), tmp_path, SIZE)
    assert disk.top == "disk-14"
    assert disk.sealed == (paths[5],)
    assert set(vmm.below) == {"disk-12", "disk-14", "disk-1", "other"}
    assert _names(tmp_path) == ["disk-1.qcow2", "disk-12.qcow2", "disk-14.qcow2"], "one is in use"
    assert disk._new_name().node == "disk-15"


@pytest.mark.parametrize("stalled", [True, False])
async def test_a_vm_that_could_not_be_let_go_on_still_counts_as_waiting(
    tmp_path: Path, base: Path, stalled: bool
) -> None:
    vmm, network = Vmm({}), FakeSlotPool()
    slot = await network.acquire()
    workshop = Workshop()
    with ThreadPoolExecutor(1) as workers:
        instance = QemuInstance(
            _process(vmm),
            identity=RuntimeIdentity("qemu", "1", "none", "none"),
            place=Place(slot, tmp_path),
            resources=Resources(1, 64, 64),
            disk=_disk(tmp_path, base),
            memory=base,
            booted=False,
            frozen=True,
            workers=workers,
            workshop=workshop,
        )
        if stalled:
            vmm.no_space.set()
        vmm.too_late.add("cont")
        with pytest.raises(RuntimeFailure):
            await instance.thaw()
        assert instance.no_space.is_set() is stalled
        vmm.too_late.clear()
        await instance.thaw()
        assert not instance.no_space.is_set()
    assert vmm.commands == ["cont", "cont"]
    await workshop.close()
    await network.release(slot)
