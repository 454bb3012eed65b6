"""Taking a capture of a live machine: one way for pause, snapshot and fork, with different endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from aenv import timings
from aenv.errors import AenvError, NoSpace, PauseRefused, VmmUnresponsive
from aenv.guest.client import EnvdClient
from aenv.guest.errors import GuestError
from aenv.runtimes.base import Capture
from aenv.sandboxes.machines import FREEZE_TIMEOUT, SYNC_TIMEOUT, Machine
from aenv.snapshots.captures import Captures
from aenv.tasks import finish

log = structlog.get_logger()

_RETRY_SECONDS = 0.1
"""Rest before an agent that couldn't stop the user's processes is asked again."""

_HEAD_START = 0.001
"""Seconds for the copying of memory to begin before what can be done beside it takes the interpreter."""


@dataclass(frozen=True)
class Captured:
    """A capture on disk, not recorded yet."""

    id: str
    capture: Capture
    guest_unresponsive: bool
    """The agent didn't answer: a restored VM would have it as it is, a booted one finds a disk as after a
    power cut."""
    goes_on: bool = False
    """The guest's processes run again, as the agent said."""


async def take(
    machine: Machine, captures: Captures, *, memory: bool, require_healthy_guest: bool
) -> Captured:
    """Freeze the guest's processes, then the VM, and capture it. The machine stays frozen.

    Without `memory` the guest first writes everything to its disk, and only that is captured.
    Raises PauseRefused if the agent doesn't answer and that is required. After a failure `release` lets
    the machine go on.
    """
    no_space = machine.instance.no_space
    refusal = None if no_space.is_set() else await _freeze_guest(machine, flush=not memory)
    if no_space.is_set():
        if not memory:
            raise NoSpace("the guest can't write to its disk: the host's disk is full")
        refusal = None  # it stands still and is whole: it finds nothing changed when it goes on
    if refusal is not None and require_healthy_guest:
        raise refusal
    async with _folder(captures) as (capture_id, folder):
        with timings.measure("stop"):
            await machine.instance.freeze()
        with timings.measure("capture"):
            capture = await machine.instance.capture(folder, memory=memory)
    return Captured(capture_id, capture, guest_unresponsive=refusal is not None)


async def take_in_passing(machine: Machine, captures: Captures, *, memory: bool) -> Captured:
    """The same, but the machine runs again as soon as its state is copied.

    The agent must answer: what is started from the capture has to be told that it is another sandbox, and a
    guest that wasn't made ready would take that for an intruder's word. Raises PauseRefused. After a failure
    `release` is needed here too.

    The stage `frozen` is the time in which no user process ran, at most: from the request to freeze them
    to the answer that they go on.
    """
    if machine.instance.no_space.is_set():
        raise NoSpace("the sandbox stands still: the host's disk is full")
    async with _folder(captures) as (capture_id, folder):
        await machine.instance.prepare()
        frozen = timings.Stopwatch("frozen")
        refusal = await _freeze_guest(machine, flush=not memory)
        if refusal is not None:
            raise refusal
        with timings.measure("stop"):
            await machine.instance.freeze()
        # Sent meanwhile, the request waits at the guest's door and is served the moment its vCPUs run.
        unfrozen = asyncio.ensure_future(_unfreeze_soon(machine))
        unfrozen.add_done_callback(frozen.stop)
        going_on = asyncio.ensure_future(_set_clock_after(unfrozen, machine))
        try:
            with timings.measure("capture"):
                capture = await machine.instance.capture(folder, thaw=True, memory=memory)
        finally:
            await finish(_wait(going_on))
        # It may have taken so long that the request had given up.
        goes_on = going_on.result() or await _unfreeze_guest(machine, set_clock=True)
    return Captured(capture_id, capture, guest_unresponsive=False, goes_on=goes_on)


async def release(machine: Machine) -> bool:
    """Let a frozen machine go on: its vCPUs first, then the guest's processes, which find the clock right.

    Returns whether they go on. A VMM or an agent that doesn't answer is logged: the VM itself is whole, and
    may still do what it was told before, to stop. Raises what else `thaw` raises.
    """
    try:
        await machine.instance.thaw()
    except VmmUnresponsive as error:
        log.error("a VMM doesn't let its VM go on", instance=machine.id, error=str(error))
        return False
    return await _unfreeze_guest(machine, set_clock=True)


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


async def _set_clock_after(unfrozen: asyncio.Future[bool], machine: Machine) -> bool:
    """When the guest goes on, tell it the time: nobody knew before for how long it would stand still.

    Its processes don't wait for that. Returns whether they go on.
    """
    return await unfrozen and await _unfreeze_guest(machine, set_clock=True)


async def _unfreeze_soon(machine: Machine) -> bool:
    await asyncio.sleep(_HEAD_START)
    return await _unfreeze_guest(machine)


async def _unfreeze_guest(machine: Machine, *, set_clock: bool = False) -> bool:
    try:
        async with asyncio.timeout(FREEZE_TIMEOUT):
            await machine.guest.unfreeze(set_clock=set_clock)
    except (AenvError, TimeoutError) as error:
        log.error("the guest agent doesn't let processes go on", instance=machine.id, error=repr(error))
        return False
    return True


async def _freeze_guest(machine: Machine, *, flush: bool) -> PauseRefused | None:
    """Make the guest ready for a capture; `flush` for one of its disk. Returns why it isn't ready, if so."""
    bound = FREEZE_TIMEOUT
    try:
        with timings.measure("guest_freeze"):
            async with asyncio.timeout(bound):
                await _stop_processes(machine.guest)
        if flush:
            bound = SYNC_TIMEOUT
            with timings.measure("guest_sync"):
                await machine.guest.sync(timeout=bound)
    except (AenvError, TimeoutError) as error:
        reason = f"it was not ready in {bound:g} s" if isinstance(error, TimeoutError) else str(error)
        log.warning("the guest agent isn't ready for a capture", instance=machine.id, reason=reason)
        return PauseRefused(f"the guest agent isn't ready for a pause or snapshot: {reason}")
    return None


async def _stop_processes(guest: EnvdClient) -> None:
    """Ask until the agent did it: a process in the middle of a long write can't be stopped at once."""
    while True:
        try:
            await guest.freeze()
        except GuestError as error:
            log.info("user processes can't be stopped yet", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
