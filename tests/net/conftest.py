"""Fixtures of the network tests: they make real namespaces, so they need root."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from ipaddress import IPv4Network
from typing import Any

import pytest

from aenv.network.base import Slot
from aenv.network.pool import SlotPool
from tests.net.support import Guest, Outside, host_state

TEST_SLOTS = IPv4Network("10.211.0.0/22")
TEST_VETHS = IPv4Network("10.212.0.0/21")
TAG = f"{os.getpid() & 0xFFFF:04x}"

MakePool = Callable[..., SlotPool]
MakeGuest = Callable[[SlotPool, Slot], Guest]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test leaves the host as it found it."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    before = host_state()
    yield
    deadline = time.monotonic() + 5
    while (after := host_state()) != before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert after == before


@pytest.fixture
async def make_pool(nothing_left: None) -> AsyncIterator[MakePool]:
    """Pools with test addresses that are closed after the test."""
    async with AsyncExitStack() as stack:

        def make(tag: str = TAG, **options: Any) -> SlotPool:
            networks = {"slot_network": TEST_SLOTS, "veth_network": TEST_VETHS}
            pool = SlotPool(tag, **{"prepared": 0, **networks, **options})
            stack.push_async_callback(pool.close)
            return pool

        yield make


@pytest.fixture
def outside(nothing_left: None) -> Iterator[Outside]:
    """The internet."""
    place = Outside(f"t{TAG}")
    yield place
    place.close()


@pytest.fixture
def make_guest(make_pool: MakePool) -> Iterator[MakeGuest]:
    """VMs that end after the test."""
    with ExitStack() as stack:

        def make(pool: SlotPool, slot: Slot) -> Guest:
            guest = Guest(f"guest-{slot.namespace}", pool.open_tap(slot))
            stack.callback(guest.close)
            return guest

        yield make
