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
from tests.net.support import TAG, Guest, Outside, enter_namespace, enter_new_namespace, host_state, ip

TEST_SLOTS = IPv4Network("10.211.0.0/22")
TEST_VETHS = IPv4Network("10.212.0.0/21")

MakePool = Callable[..., SlotPool]
MakeGuest = Callable[[SlotPool, Slot], Guest]


@pytest.fixture(autouse=True)
def private_host() -> Iterator[None]:
    """A fresh namespace is the host of each test, so servers and tests beside it neither see nor feel it."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    enter_new_namespace()
    try:
        ip("link", "set", "lo", "up")
        yield
    finally:
        enter_namespace(home)
        os.close(home)


@pytest.fixture(autouse=True)
def nothing_left(private_host: None) -> Iterator[None]:
    """Every test leaves the host as it found it."""
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
            pool = SlotPool(tag, **{"prepared": 0, "kept": 16, **networks, **options})
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
