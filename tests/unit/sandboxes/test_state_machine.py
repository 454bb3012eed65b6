"""Random lives of sandboxes on the fake runtime. `AENV_STEPS` lengthens the long test."""

from __future__ import annotations

import os

import pytest

from tests.lives.machine import Lives, explore
from tests.unit.sandboxes.fake_world import FakeWorld


class FakeLives(Lives):
    """Many at a time."""

    def new_world(self) -> FakeWorld:
        """Another node."""
        return FakeWorld()


@pytest.mark.timeout(400)
def test_whatever_is_done_the_table_holds_and_nothing_is_lost_or_leaks() -> None:
    """The same steps each time: what it finds today it finds tomorrow."""
    explore(FakeLives, max_examples=8, stateful_step_count=40, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_same_for_thousands_of_steps() -> None:
    """Other steps each time."""
    explore(FakeLives, max_examples=int(os.environ.get("AENV_STEPS", "3000")) // 60, stateful_step_count=60)
