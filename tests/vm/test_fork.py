"""Many instances from one capture, and one instance captured while it runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.vm.support import Lab, Prepared

pytestmark = pytest.mark.vm


async def test_four_children_are_independent(lab: Lab, prepared: Prepared) -> None:
    parent = await lab.restore(prepared.captures[2])
    await parent.thaw()
    memory = await lab.ask(parent, "POST", "/fill?mib=4")
    await lab.ask(parent, "PUT", "/file/common", b"from the parent")
    capture = await lab.capture(parent)
    await parent.thaw()
    frozen_at = int(await lab.ask(parent, "GET", "/count"))

    children = [await lab.restore(capture) for _ in range(4)]
    for number, child in enumerate(children):
        await child.thaw()
        assert await lab.ask(child, "GET", "/memory") == memory
        assert await lab.ask(child, "GET", "/file/common") == b"from the parent"
        assert 0 < int(await lab.ask(child, "GET", "/count")) < frozen_at + 3000
        await lab.ask(child, "PUT", "/file/common", f"from child {number}".encode())
        # Of a size of its own: these copies were told no entropy, so they may well draw the same numbers.
        await lab.ask(child, "POST", f"/fill?mib={number + 1}")

    assert await lab.ask(parent, "GET", "/memory") == memory
    assert await lab.ask(parent, "GET", "/file/common") == b"from the parent"
    contents = [await lab.ask(child, "GET", "/file/common") for child in children]
    assert contents == [f"from child {number}".encode() for number in range(4)]
    memories = {await lab.ask(child, "GET", "/memory") for child in children}
    assert len(memories) == 4
    assert memory not in memories


async def test_an_instance_runs_on_while_its_capture_is_written(lab: Lab, prepared: Prepared) -> None:
    """What it does then is not in the capture."""
    instance = await lab.restore(prepared.captures[2])
    await instance.thaw()
    for _ in range(3):
        memory = await lab.ask(instance, "POST", "/fill?mib=16")
        await lab.ask(instance, "PUT", "/file/state", memory)
        await instance.freeze()
        capturing = asyncio.create_task(instance.capture(lab.new_folder(), thaw=True))
        other = await lab.ask(instance, "POST", "/fill?mib=16")
        await lab.ask(instance, "PUT", "/file/state", other)
        child = await lab.restore(await capturing)
        await child.thaw()
        assert await lab.ask(child, "GET", "/memory") == memory
        assert await lab.ask(child, "GET", "/file/state") == memory
        await lab.end(child)


async def test_an_instance_outlives_its_captures(lab: Lab, prepared: Prepared) -> None:
    """What it sealed stays its own, also when the capture it was sealed for is deleted."""
    instance = await lab.restore(prepared.captures[1])
    await instance.thaw()
    for number in range(3):
        await lab.ask(instance, "PUT", f"/file/kept-{number}", b"x" * 300_000)
        capture = await lab.capture(instance)
        await instance.thaw()
        own = [layer.path for layer in capture.layers if layer.path.is_relative_to(lab.folder)]
        if number < 2:
            for path in own:
                path.unlink()
    await lab.end(instance)
    again = await lab.restore(capture)
    await again.thaw()
    for number in range(3):
        assert await lab.ask(again, "GET", f"/file/kept-{number}") == b"x" * 300_000


async def test_a_booted_instance_goes_on_after_a_capture(lab: Lab, prepared: Prepared) -> None:
    instance = await lab.boot(prepared.image, 1)
    memory = await lab.ask(instance, "POST", "/fill?mib=2")
    first = await lab.capture(instance)
    await instance.thaw()
    await lab.ask(instance, "POST", "/fill?mib=3")
    child = await lab.restore(first)
    await child.thaw()
    assert await lab.ask(child, "GET", "/memory") == memory
    second = await lab.capture(instance)
    later = await lab.restore(second)
    await later.thaw()
    assert await lab.ask(later, "GET", "/memory") != memory


async def test_the_clock_runs_at_the_right_speed(lab: Lab, prepared: Prepared) -> None:
    """Under emulation the guest trusts the frequency it was told."""
    instance = await lab.restore(prepared.captures[2])
    await instance.thaw()
    await lab.ask(instance, "GET", "/clock")  # the first answer is slow
    loop = asyncio.get_running_loop()

    async def both() -> tuple[float, float, float]:
        before = loop.time()
        answer = await lab.ask(instance, "GET", "/clock")
        after = loop.time()
        assert answer.split()[1] in (b"tsc", b"kvm-clock")
        return before, int(answer.split()[0]) / 1e9, after

    early = await both()
    deadline = early[2] + 4.0
    while loop.time() < deadline:
        late = await both()
    guest = late[1] - early[1]
    uncertain = (late[2] - late[0]) + (early[2] - early[0])
    assert abs(guest - (late[0] - early[0])) <= uncertain + 0.002


async def test_a_vmm_has_no_huge_pages(lab: Lab, prepared: Prepared) -> None:
    """They would be mostly empty, and each one's own."""
    instance = await lab.restore(prepared.captures[2])
    await instance.thaw()
    await lab.ask(instance, "GET", "/count")
    rollup = await asyncio.to_thread(Path(f"/proc/{instance.pid}/smaps_rollup").read_text)
    assert rollup.partition("AnonHugePages:")[2].split()[0] == "0"
