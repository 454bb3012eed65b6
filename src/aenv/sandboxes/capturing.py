"""Taking a capture of a live machine: one way for pause, snapshot and fork, with different endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from aenv import timings
from aenv.errors import AenvError, GuestUnresponsive
from aenv.runtimes.base import Capture
from aenv.sandboxes.machines import FREEZE_TIMEOUT, Machine
from aenv.snapshots.captures import Captures
from aenv.tasks import finish

log = structlog.get_logger()


@dataclass(frozen=True)
class Captured:
    """A capture on disk, not recorded yet."""

    id: str
    capture: Capture
    guest_unresponsive: bool
    """The agent didn't answer, so user processes will run as soon as a restored VM does."""


async def take(machine: Machine, captures: Captures, *, require_healthy_guest: bool) -> Captured:
    """Freeze the guest's processes, then the VM, and capture it. The machine stays frozen.

    Raises GuestUnresponsive if the agent doesn't answer and that is required. After a failure `release`
    lets the machine go on.
    """
    unresponsive = not await _freeze_guest(machine)
    if unresponsive and require_healthy_guest:
        raise GuestUnresponsive(f"the guest agent didn't answer in {FREEZE_TIMEOUT:g} s")
    async with _folder(captures) as (capture_id, folder):
        with timings.measure("stop"):
            await machine.instance.freeze()
        with timings.measure("capture"):
            capture = await machine.instance.capture(folder)
    return Captured(capture_id, capture, unresponsive)


async def take_in_passing(machine: Machine, captures: Captures) -> Captured:
    """The same, but the machine runs again as soon as its state is copied, also after a failure.

    The stage `frozen` is the time in which no user process ran, at most: from the request to freeze them
    to the answer that they go on.
    """
    frozen = timings.Stopwatch("frozen")
    unresponsive = not await _freeze_guest(machine)
    async with _folder(captures) as (capture_id, folder):
        with timings.measure("stop"):
            await machine.instance.freeze()
        # Sent now, the request waits at the guest's door and is served the moment its vCPUs run.
        going_on = asyncio.ensure_future(_unfreeze_guest(machine))
        going_on.add_done_callback(frozen.stop)
        try:
            with timings.measure("capture"):
                capture = await machine.instance.capture(folder, thaw=True)
        finally:
            await finish(_wait(going_on))
        if not going_on.result() and not unresponsive:  # it took so long that the request had given up
            await _unfreeze_guest(machine)
    return Captured(capture_id, capture, unresponsive)


async def release(machine: Machine) -> None:
    """Let a frozen machine go on: its vCPUs first, then the guest's processes.

    Raises what `thaw` raises. An agent that doesn't answer is logged: the VM itself is whole.
    """
    await machine.instance.thaw()
    await _unfreeze_guest(machine)


@asynccontextmanager
async def _folder(captures: Captures) -> AsyncIterator[tuple[str, Path]]:
    """A folder for a capture, removed if the block fails."""
    capture_id, folder = captures.new()
    try:
        yield capture_id, folder
    except BaseException:
        await finish(captures.discard(capture_id))
        raise


async def _wait(future: asyncio.Future[bool]) -> None:
    await asyncio.wait([future])


async def _unfreeze_guest(machine: Machine) -> bool:
    try:
        async with asyncio.timeout(FREEZE_TIMEOUT):
            await machine.guest.unfreeze()
    except (AenvError, TimeoutError) as error:
        log.error("the guest agent doesn't let processes go on", instance=machine.id, error=repr(error))
        return False
    return True


async def _freeze_guest(machine: Machine) -> bool:
    try:
        with timings.measure("guest_freeze"):
            async with asyncio.timeout(FREEZE_TIMEOUT):
                await machine.guest.freeze()
    except (AenvError, TimeoutError) as error:
        log.warning("the guest agent doesn't answer", instance=machine.id, error=repr(error))
        return False
    return True
