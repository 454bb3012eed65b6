"""Memory, disk and network survive pause and resume, byte for byte."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from aenv.runtimes.qemu.layers import QemuLayers
from tests.net.support import OUTSIDE_ADDRESS, Outside
from tests.vm.support import TAG, Lab, Prepared, captured_memory, echo_through, guest_memory

pytestmark = pytest.mark.vm

CYCLES = 20


@pytest.fixture
def echo_outside() -> Iterator[str]:
    """A UDP echo server on the internet; its address."""
    place = Outside(f"vm{TAG}")
    server = place.udp()
    stopping = threading.Event()

    def serve() -> None:
        server.settimeout(0.1)
        while not stopping.is_set():
            try:
                message, peer = server.recvfrom(2000)
                server.sendto(message, peer)
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"{OUTSIDE_ADDRESS}:{server.getsockname()[1]}"
    stopping.set()
    thread.join()
    server.close()
    place.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cpu_count", [pytest.param(1, marks=pytest.mark.long), 2])
async def test_twenty_cycles_under_traffic(
    lab: Lab, prepared: Prepared, echo_outside: str, cpu_count: int
) -> None:
    capture = prepared.captures[cpu_count]
    counter = written = replies = 0
    for cycle in range(CYCLES):
        instance = await lab.restore(capture)
        base = QemuLayers.of(capture).memory_base
        expected = await asyncio.to_thread(captured_memory, capture)
        assert np.array_equal(await asyncio.to_thread(guest_memory, instance, base), expected)

        await instance.thaw()
        if cycle == 0:
            await lab.ask(instance, "POST", f"/traffic?outside={echo_outside}")
        files = int(await lab.ask(instance, "POST", "/verify"))
        assert files >= (1 if cycle else 0)
        last_counter, counter = counter, int(await lab.ask(instance, "GET", "/count"))
        assert last_counter < counter < last_counter + 3000  # it went on, not from the start

        traffic = asyncio.create_task(echo_through(instance.place.slot.host_address, 30))
        last_written, last_replies = written, replies
        while written == last_written or replies == last_replies:
            report = await lab.ask(instance, "GET", "/report")
            written, replies = (int(word) for word in report.split())
        assert await traffic > 15

        traffic = asyncio.create_task(echo_through(instance.place.slot.host_address, 5))
        await instance.freeze()
        now = await asyncio.to_thread(guest_memory, instance, base)
        capture = await instance.capture(lab.new_folder())
        assert np.array_equal(await asyncio.to_thread(captured_memory, capture), now)
        await lab.end(instance)
        await traffic
