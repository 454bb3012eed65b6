"""What happens when the host's disk is full: nothing that a sandbox did is lost while the host lives.

A VM whose guest can't write stands still. Then what is only a cache is given up and the VM tries again. If
that isn't enough, the sandbox is paused, with the reason; the reserve is there for that. If even a pause
can't be written, the VM stays as it is in memory, and all of this is tried again until there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from aenv import unexpected
from aenv.errors import AenvError, NoSpace
from aenv.full import free_bytes
from aenv.sandboxes import capturing
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.reserve import Reserve
from aenv.tasks import cancel

log = structlog.get_logger()

PROOF_SECONDS = 1.0
"""A VM that hasn't stopped again after so long can write."""

RETRY_SECONDS = 5.0
"""Rest before the next attempt to find room, and between looks whether the reserve can be made again."""

PAUSED_BECAUSE = "the host's disk was full"


class Room:
    """Makes room, and watches every VM of a sandbox for a guest that can't write.

    `pause` pauses a sandbox whose lock is held; the machine stands still, and stays so if it fails.
    """

    def __init__(self, core: Core, reserve: Reserve, pause: Callable[[str], Awaitable[None]]) -> None:
        self._core = core
        self._reserve = reserve
        self._pause = pause
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._making = asyncio.Lock()
        self._pausing = asyncio.Lock()
        self.on_full: list[Callable[[], Awaitable[None]]] = []
        """Called when the disk is full, to give up what of others' is only a cache."""
        core.on_admitted.append(self.watch)

    async def run(self) -> None:
        """Keep the reserve until cancelled; then nothing is watched any more."""
        try:
            while True:
                await self._reserve.make()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await cancel(*self._watchers.values())

    def watch(self, sandbox_id: str, machine: Machine) -> None:
        """Look after a machine for as long as it lives."""
        if machine.id in self._watchers:
            return
        watcher = asyncio.ensure_future(self._watch(sandbox_id, machine))
        self._watchers[machine.id] = watcher
        machine.instance.ended.add_done_callback(lambda _ended: watcher.cancel())
        watcher.add_done_callback(lambda _done: self._watchers.pop(machine.id, None))

    async def make(self, *, for_pause: bool) -> None:
        """Give up what is only a cache; for a pause the reserve, too.

        It is done to the end even if the caller is cancelled, as a watcher is whose VM ends meanwhile.
        """
        await asyncio.shield(self._core.tasks.start(self._make(for_pause=for_pause)))

    async def _make(self, *, for_pause: bool) -> None:
        core = self._core
        async with self._making:
            if for_pause:  # first: what comes next may have to write
                await self._reserve.release()
            core.starter.hot.forget_all()
            core.starter.bare.forget_all()
            for machine in core.starter.stopped.take_all():
                try:
                    await core.machines.destroy(machine)
                except (AenvError, OSError) as error:
                    log.error("a stopped VM can't be ended", machine=machine.id, error=str(error))
                except Exception as error:  # noqa: BLE001 (nobody else has the others)
                    unexpected.note("room", "a stopped VM can't be ended", error, machine=machine.id)
            for give_up in self.on_full:
                await give_up()
            await core.tidy()

    async def make_if_short(self) -> None:
        """Before a pause: make room if there may be too little."""
        if await asyncio.to_thread(self._reserve.is_short):
            await self.make(for_pause=True)

    async def _watch(self, sandbox_id: str, machine: Machine) -> None:
        while True:
            await machine.instance.no_space.wait()
            try:
                await self._relieve(sandbox_id, machine)
            except (AenvError, OSError) as error:
                log.error("there is no room for a sandbox yet", sandbox=sandbox_id, error=str(error))
            except Exception as error:  # noqa: BLE001 (it is tried again, whatever it was)
                unexpected.note("room", "no room could be made", error, sandbox=sandbox_id)
            if machine.instance.no_space.is_set():
                await asyncio.sleep(RETRY_SECONDS)

    async def _relieve(self, sandbox_id: str, machine: Machine) -> None:
        core = self._core
        if core.live.machine(sandbox_id) is machine and not core.live.waits_for_room(sandbox_id):
            core.live.wait_for_room(sandbox_id)
            free = await asyncio.to_thread(free_bytes, machine.place.folder)
            log.error("a sandbox can't write: the host's disk is full", sandbox=sandbox_id, free_bytes=free)
            core.telemetry.record(
                sandbox_id, "disk_full", "the host's disk is full: the sandbox waits for room"
            )
        await self.make(for_pause=False)
        await core.whole(self._go_on_or_pause(sandbox_id, machine))

    async def _go_on_or_pause(self, sandbox_id: str, machine: Machine) -> None:
        core = self._core
        async with core.locks.hold(sandbox_id):
            if core.live.machine(sandbox_id) is not machine:
                return
            if machine.instance.no_space.is_set():  # else an operation has let it try again, with success
                await machine.instance.thaw()
                if await _stops_again(machine):
                    async with self._pausing:  # one at a time gets all of the reserve
                        await self._reserve.release()
                        await self._pause(sandbox_id)
                    return
            await self._go_on(sandbox_id, machine)

    async def _go_on(self, sandbox_id: str, machine: Machine) -> None:
        """Let a sandbox whose VM runs go on as a whole; its lock is held."""
        core = self._core
        await capturing.release(machine)  # a capture that came to nothing may have stopped users' processes
        if machine.instance.no_space.is_set() or not core.live.waits_for_room(sandbox_id):
            return
        log.warning("a sandbox that couldn't write goes on", sandbox=sandbox_id)
        core.live.reopen(sandbox_id)
        core.telemetry.record(sandbox_id, "disk_free", "there is room again: the sandbox goes on")


async def _stops_again(machine: Machine) -> bool:
    try:
        async with asyncio.timeout(PROOF_SECONDS):
            await machine.instance.no_space.wait()
    except TimeoutError:
        return False
    return True


def cannot_write(sandbox_id: str) -> NoSpace:
    """What is said of a sandbox that stands still."""
    return NoSpace(
        f"sandbox {sandbox_id} stands still because the host's disk is full; it goes on when there is room",
        retry_after=RETRY_SECONDS,
    )
