"""Taking a capture of a live machine: one way for pause, snapshot and fork, with different endings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

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
    capture_id, folder = captures.new()
    try:
        with timings.measure("stop"):
            await machine.instance.freeze()
        with timings.measure("capture"):
            capture = await machine.instance.capture(folder)
    except BaseException:
        await finish(captures.discard(capture_id))
        raise
    return Captured(capture_id, capture, unresponsive)


async def release(machine: Machine) -> None:
    """Let a frozen machine go on: its vCPUs first, then the guest's processes.

    Raises what `thaw` raises. An agent that doesn't answer is logged: the VM itself is whole.
    """
    await machine.instance.thaw()
    try:
        async with asyncio.timeout(FREEZE_TIMEOUT):
            await machine.guest.unfreeze()
    except (AenvError, TimeoutError) as error:
        log.error("the guest agent doesn't let processes go on", instance=machine.id, error=repr(error))


async def _freeze_guest(machine: Machine) -> bool:
    try:
        with timings.measure("guest_freeze"):
            async with asyncio.timeout(FREEZE_TIMEOUT):
                await machine.guest.freeze()
    except (AenvError, TimeoutError) as error:
        log.warning("the guest agent doesn't answer", instance=machine.id, error=repr(error))
        return False
    return True
