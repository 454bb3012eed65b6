"""The children of a fork are loaded one after the other and begin to run together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.errors import AenvError, RuntimeFailure
from aenv.runtimes.base import Capture, Instance
from aenv.runtimes.fake import FakeBareVmm, FakeInstance
from aenv.sandboxes.models import Sandbox
from tests.unit.sandboxes.conftest import Rig

# The loads of spare VMs would be among those that are looked at.
pytestmark = pytest.mark.parametrize("rig", ["no pools"], indirect=True)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What happens to the VMs of the fake runtime, in order, and to which."""
    noted: list[tuple[str, str]] = []
    load, thaw = FakeBareVmm.load, FakeInstance.thaw

    async def noted_load(vmm: FakeBareVmm, capture: Capture) -> Instance:
        noted.append(("load", vmm.place.folder.name))
        return await load(vmm, capture)

    async def noted_thaw(instance: FakeInstance) -> None:
        noted.append(("thaw", instance.place.folder.name))
        await thaw(instance)

    monkeypatch.setattr(FakeBareVmm, "load", noted_load)
    monkeypatch.setattr(FakeInstance, "thaw", noted_thaw)
    return noted


async def test_no_child_runs_before_all_are_loaded(rig: Rig, steps: list[tuple[str, str]]) -> None:
    parent = await rig.create()
    count = rig.settings.concurrent_starts + 3
    children = await rig.node.sandboxes.fork(parent.id, count)
    theirs = {child.instance_id for child in children if isinstance(child, Sandbox)}
    assert len(theirs) == count
    assert [step for step, whose in steps if whose in theirs] == ["load"] * count + ["thaw"] * count


async def test_a_child_that_cant_be_loaded_keeps_nobody_waiting(rig: Rig) -> None:
    parent = await rig.create()
    rig.runtime.order_failure("load", RuntimeFailure("the delta is damaged"))
    async with asyncio.timeout(60):
        children = await rig.node.sandboxes.fork(parent.id, 3)
    assert [isinstance(child, AenvError) for child in children].count(True) == 1
    assert len(rig.runtime.instances) == 1 + 2


async def test_a_vm_that_dies_while_it_waits_is_only_its_own_loss(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await rig.create()
    load = FakeBareVmm.load
    died: list[Path] = []

    async def dying(vmm: FakeBareVmm, capture: Capture) -> Instance:
        instance = await load(vmm, capture)
        if not died:
            died.append(instance.place.folder)
            assert isinstance(instance, FakeInstance)
            instance.die("killed")
        return instance

    monkeypatch.setattr(FakeBareVmm, "load", dying)
    async with asyncio.timeout(60):
        children = await rig.node.sandboxes.fork(parent.id, 3)
    assert [isinstance(child, AenvError) for child in children].count(True) == 1
    assert not died[0].exists()
