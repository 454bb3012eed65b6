"""Random lives of sandboxes on real VMs and networks, with a server that is really killed.

`AENV_STEPS` lengthens or shortens a run; `AENV_SEED`, printed by each run, repeats its steps.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import seed

from aenv.images.bundle import GuestBundle
from aenv.node import Node
from aenv.runtimes.qemu.runtime import QemuRuntime
from aenv.settings import Settings
from tests.lives.machine import Lives, explore
from tests.vm.apart import Parts, RemoteNode
from tests.vm.support import DISK_MIB, MEMORY_MIB, SLOTS, VETHS
from tests.vm.world import RealWorld

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("AENV_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
STEPS = int(os.environ.get("AENV_STEPS", "150"))
STEPS_OF_A_LIFE = 30


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


def test_whatever_is_done_nothing_is_lost_or_leaks(base: Parts, vm_folder: Path, nothing_left: None) -> None:
    sys.stderr.write(f"\nAENV_SEED={SEED} AENV_STEPS={STEPS}\n")
    numbers = itertools.count()

    @seed(SEED)
    class RealLives(Lives):
        most = 3

        def new_world(self) -> RealWorld:
            return RealWorld(base, vm_folder / f"lives-{next(numbers)}")

    examples = max(1, STEPS // STEPS_OF_A_LIFE)
    explore(RealLives, max_examples=examples, stateful_step_count=STEPS_OF_A_LIFE)
