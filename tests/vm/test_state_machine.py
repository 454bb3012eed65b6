"""Random lives of sandboxes on real VMs and networks, with a server that is really killed.

`AENV_STEPS` lengthens or shortens a run; `AENV_SEED`, printed by each run, repeats its steps.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import seed

from tests.lives.machine import Lives, explore
from tests.vm.apart import Parts
from tests.vm.world import RealWorld

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("AENV_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
STEPS = int(os.environ.get("AENV_STEPS", "120"))
STEPS_OF_A_LIFE = 30


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
