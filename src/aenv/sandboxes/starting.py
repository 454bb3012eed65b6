"""Getting a running machine for a sandbox, by the quickest way there is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from pathlib import Path

import structlog

from aenv import host, ids, timings
from aenv.errors import AenvError, GuestUnresponsive, NoSpace, RuntimeFailure
from aenv.guest.client import InitRequest
from aenv.runtimes.base import BareVmm, BootSpec, Capture
from aenv.sandboxes.activity import Activity
from aenv.sandboxes.costs import StartCosts
from aenv.sandboxes.machines import GUEST_TIMEOUT, Machine, Machines, identity, unless_full
from aenv.sandboxes.models import Sandbox
from aenv.sandboxes.pools import Pool
from aenv.sandboxes.spares import MemoryPlan, Spares
from aenv.sandboxes.states import State
from aenv.sandboxes.stopped import StoppedMachines
from aenv.sandboxes.turns import StartTurns
from aenv.snapshots.captures import Captures
from aenv.tasks import finish

log = structlog.get_logger()

SPARE_TIMEOUT = 120.0
"""Seconds that the guest of a hot VM has for each step: in the background it has little of a busy CPU."""

KINDS = 4
"""Of how many templates, and of how many memory bases, spare machines are kept."""

Meet = Callable[[], Awaitable[None]]
"""Returns when all that start together have come so far, or have failed."""

REHEARSAL = InitRequest(sandbox_id="warm", template_id="warm", hostname=ids.new_sandbox_id())
"""The identity with which a hot VM rehearses being given one: the host name is as long as a real one."""


class Starter:
    """Starts machines: from a stopped VM, a hot VM, a bare VMM or from nothing, in this order.

    - *stopped*: the sandbox's own VM, paused but still in memory;
    - *hot*: a VM of the same capture, restored and answering, then stopped before it got an identity;
    - *bare*: a VMM process that holds the memory base already.
    """

    def __init__(
        self,
        machines: Machines,
        captures: Captures,
        activity: Activity,
        turns: StartTurns,
        *,
        hot_vms: int,
        bare_vms: int,
        stopped_vms: int,
        plan: MemoryPlan,
    ) -> None:
        self._machines = machines
        self._turns = turns
        self._captures = captures
        self._examples: dict[str, Capture] = {}
        self._costs = StartCosts()
        # So many guests that run together are told at a time who they are: all at once would each be late.
        self._identifying = asyncio.Semaphore(host.cpus() + 1)
        self.stopped = StoppedMachines(stopped_vms, machines.destroy)
        self.hot = Pool[Machine](
            "hot",
            hot_vms,
            KINDS,
            make=self._make_hot,
            dispose=machines.destroy,
            ended=lambda machine: machine.instance.ended.done(),
            activity=activity,
        )
        self.bare = Pool[BareVmm](
            "bare",
            bare_vms,
            KINDS,
            make=self._make_bare,
            dispose=machines.discard,
            ended=lambda vmm: vmm.ended.done(),
            activity=activity,
        )
        # What is given up first is what costs least to lose: a stopped VM is on disk, a hot one can be made.
        self.spares = Spares((self.stopped, self.hot, self.bare), plan, host.memory)
        self.hot.may_make = functools.partial(self.spares.may_make, "hot")
        self.bare.may_make = functools.partial(self.spares.may_make, "bare")
        captures.on_removed = self.hot.forget
        captures.on_freed = self._forget_holders

    @property
    def waiting(self) -> int:
        """How many starts wait for their turn."""
        return self._turns.waiting

    async def run(self) -> None:
        """Keep the pools filled until cancelled, then empty them and give up the stopped machines."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.hot.run())
                group.create_task(self.bare.run())
                group.create_task(self.spares.watch())
        finally:
            for machine in self.stopped.take_all():
                await finish(self._machines.destroy(machine))

    async def start(
        self, sandbox: Sandbox, *, hot: bool, group: str, reboot: bool = False, together: Meet | None = None
    ) -> Machine:
        """A running machine in the state of `sandbox.capture_id`, which knows that it is `sandbox`.

        `hot` is for a new sandbox: it allows a hot VM, and asks that there be one next time. `reboot` boots
        from the disk though there may be a memory. Starts of one `group` wait behind each other, and groups
        take turns. `together` is awaited before the vCPUs run. Raises Overloaded if too many wait, if it
        would wait for too long, or for want of memory.
        """
        spare = self._spare_for(sandbox, hot=hot)
        if spare is not None and reboot:
            await self._machines.destroy(spare)
        elif spare is not None:
            try:
                return await self._awaken(spare, sandbox)
            except AenvError as error:
                if isinstance(error, GuestUnresponsive) and not hot:
                    raise  # the same state is on disk: its agent wouldn't answer from there either
                if isinstance(error, NoSpace):
                    raise
                log.warning("a spare VM didn't come back", sandbox=sandbox.id, error=str(error))
        async with self._turns.turn(group):
            capture = await self._captures.get(sandbox.capture_id)
            boots, guest = reboot or not capture.memory, sandbox.resources.memory_mib
            kind = f"boot {guest}" if boots else self._key(capture)
            loaded = 0 if boots else self._machines.loaded(capture)
            async with self.spares.room(self._costs.expected(kind, loaded, guest << 20)):
                if boots:
                    with timings.measure("boot"):
                        machine = await self._machines.boot(BootSpec(capture, sandbox.resources))
                else:
                    machine = await self._restore(capture)
                if together is None:
                    await self._awaken(machine, sandbox)
        if together is not None:
            await self._awaken(machine, sandbox, together)
        self._costs.note(kind, loaded, machine.memory().private)
        return machine

    async def boot(self, spec: BootSpec, *, group: str, patience: float) -> Machine:
        """A booted machine that is no sandbox's; its agent has `patience` seconds to answer.

        Raises Overloaded as `start` does.
        """
        guest = spec.resources.memory_mib
        need = self._costs.expected(f"boot {guest}", 0, guest << 20)
        async with self._turns.turn(group), self.spares.room(need):
            return await self._machines.boot(spec, patience=patience)

    async def restore(self, capture: Capture, *, group: str) -> Machine:
        """A frozen machine in a captured state, and no sandbox's. Raises Overloaded as `start` does."""
        guest = capture.resources.memory_mib
        need = self._costs.expected(self._key(capture), self._machines.loaded(capture), guest << 20)
        async with self._turns.turn(group), self.spares.room(need):
            return await self._machines.load(await self._machines.spawn(capture), capture)

    def _spare_for(self, sandbox: Sandbox, *, hot: bool) -> Machine | None:
        if hot:
            return self.hot.take(sandbox.capture_id)
        return self.stopped.take(sandbox.id) if sandbox.state is State.RESUMING else None

    async def _awaken(self, machine: Machine, sandbox: Sandbox, together: Meet | None = None) -> Machine:
        """Let the vCPUs run and tell the guest who it is. On failure the machine is destroyed."""
        try:
            if together is not None:
                await together()
            await machine.instance.thaw()
            timings.mark("running")
            async with self._identifying if together else nullcontext(), asyncio.timeout(GUEST_TIMEOUT):
                # An agent that wasn't frozen, since it stood still for want of room, asks for its token.
                machine.guest.set_token(sandbox.envd_token)
                await unless_full(machine, machine.guest.init(identity(sandbox)))
            timings.mark("answering")
        except TimeoutError as error:
            await finish(self._machines.destroy(machine))
            raise GuestUnresponsive(
                f"the guest of sandbox {sandbox.id} didn't answer in {GUEST_TIMEOUT:g} s"
            ) from error
        except BaseException:
            await finish(self._machines.destroy(machine))
            raise
        return machine

    async def _restore(self, capture: Capture) -> Machine:
        """A frozen machine in the captured state."""
        vmm = self.bare.take(self._key(capture))
        if vmm is None:
            with timings.measure("spawn"):
                vmm = await self._machines.spawn(capture)
        with timings.measure("load"):
            return await self._machines.load(vmm, capture)

    def _key(self, capture: Capture) -> str:
        """Which bare VMMs can load a capture; what it takes to make one is remembered."""
        key = self._machines.key(capture)
        self._examples[key] = capture
        return key

    def _forget_holders(self, layers: Collection[Path]) -> None:
        """Give up bare VMMs that keep open what is removed: nothing can be loaded into them any more."""
        gone = set(layers)
        for key, example in list(self._examples.items()):
            if self._machines.held(example) in gone:
                del self._examples[key]
                self.bare.forget(key)

    async def _make_hot(self, capture_id: str) -> Machine:
        """A hot VM, with a VMM of its own: the bare ones are for clients."""
        await self._turns.idle()
        capture = await self._captures.get(capture_id)
        self.bare.want(self._key(capture))
        vmm = await self._machines.spawn(capture, background=True)
        machine = await self._machines.load(vmm, capture)
        try:
            await machine.instance.thaw()
            await machine.guest.wait_healthy(SPARE_TIMEOUT)
            await machine.guest.warm(REHEARSAL, timeout=SPARE_TIMEOUT)
            await machine.instance.prepare()
            await machine.instance.freeze()
            await machine.instance.to_foreground()
        except BaseException:
            await finish(self._machines.destroy(machine))
            raise
        return machine

    async def _make_bare(self, key: str) -> BareVmm:
        await self._turns.idle()
        if (example := self._examples.get(key)) is None:
            raise RuntimeFailure("the memory base is gone")
        vmm = await self._machines.spawn(example, background=True)
        try:
            await vmm.to_foreground()
        except BaseException:
            await finish(self._machines.discard(vmm))
            raise
        return vmm
