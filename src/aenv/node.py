"""One node: everything between the HTTP edge and the virtual machines, put together and taken apart."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog

from aenv import host, unexpected
from aenv.database import Database
from aenv.errors import HostNotReady
from aenv.guest.client import EnvdClient
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.convert import Converter
from aenv.images.progress import Progress, QuietProgress
from aenv.images.service import ImageService
from aenv.network.base import NetworkPool
from aenv.runtimes.base import Resources, Runtime
from aenv.runtimes.choice import Chosen, choose_runtime
from aenv.sandboxes import recovery, store
from aenv.sandboxes.activity import Activity
from aenv.sandboxes.compaction import Compaction
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machines
from aenv.sandboxes.models import Limits
from aenv.sandboxes.reserve import Reserve
from aenv.sandboxes.service import SandboxService
from aenv.sandboxes.spares import MemoryPlan
from aenv.sandboxes.starting import Starter
from aenv.sandboxes.states import LIVE, State
from aenv.sandboxes.turns import StartTurns
from aenv.settings import Settings, listed
from aenv.snapshots.captures import Captures
from aenv.snapshots.disk_cache import DiskCache
from aenv.tasks import cancel
from aenv.telemetry.service import Telemetry
from aenv.templates.base import ensure_base
from aenv.templates.build_log import BuildLogs
from aenv.templates.builder import Builder
from aenv.templates.construction import Tools
from aenv.templates.service import TemplateService
from aenv.templates.uploads import Uploads

log = structlog.get_logger()

FIRST_SPARE_SECONDS = 10.0
"""How long a starting server waits for a hot VM, so that the first create is as quick as the next."""

CLOSE_SECONDS = 60.0
"""How long a stopping server pauses sandboxes before it gives the rest up."""


Choose = Callable[[Settings, Progress], Awaitable[Chosen]]
"""Finds a node's runtime and what goes with it."""


class Node:
    """Start it, use `sandboxes` and `templates`, stop it."""

    sandboxes: SandboxService
    templates: TemplateService
    captures: Captures
    disks: DiskCache
    images: ImageService
    builder: Builder
    uploads: Uploads
    telemetry: Telemetry
    starter: Starter
    runtime: Runtime
    network: NetworkPool

    def __init__(self, settings: Settings, choose: Choose = choose_runtime) -> None:
        self._settings = settings
        self._choose = choose
        self._stack = AsyncExitStack()

    async def start(self, progress: Progress | None = None) -> None:
        """Recover what an earlier server left, make what is missing, and be ready to serve.

        Raises HostNotReady if something of the host is missing; nothing is left running then.
        """
        try:
            await self._start(progress or QuietProgress())
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self, progress: Progress) -> None:
        settings, stack = self._settings, self._stack
        stack.callback(os.close, await asyncio.to_thread(_claim_home, settings))
        database = await Database.open(settings.database)
        stack.push_async_callback(database.close)

        chosen = await self._choose(settings, progress)
        self.runtime, self.network = chosen.runtime, chosen.network
        stack.push_async_callback(self.runtime.close)
        workspace = settings.workspace_dir.resolve()
        survivors = await recovery.settle(database, self.runtime, workspace)
        folders = {each.place.folder for each in survivors}
        await self.runtime.end_strays(workspace, folders)
        await asyncio.to_thread(_empty, workspace, folders)
        await self.network.start(keep=[each.place.slot for each in survivors])
        stack.push_async_callback(self.network.close)

        self.captures = Captures(database, settings.home.resolve(), settings.captures_dir.resolve())
        await self.captures.sweep()
        self.disks = DiskCache(
            database, self.captures, settings.home.resolve(), settings.cached_disks_mib << 20
        )
        resources = Resources(settings.cpu_count, settings.memory_mib, settings.disk_mib)
        self.images = await self._images(resources)
        machines = Machines(
            self.runtime,
            self.network,
            workspace,
            EnvdClient,
        )
        template = await ensure_base(
            image=chosen.base_image,
            resources=resources,
            runtime=self.runtime,
            database=database,
            captures=self.captures,
            machines=machines,
            progress=progress,
        )
        activity = Activity()
        memory = await asyncio.to_thread(host.memory)
        turns = StartTurns(settings.concurrent_starts, settings.max_queued_starts, settings.max_start_wait)
        self.starter = Starter(
            machines,
            self.captures,
            activity,
            turns,
            hot_vms=settings.hot_vms,
            bare_vms=settings.bare_vms,
            stopped_vms=settings.stopped_vms,
            plan=_plan(settings, memory.total),
        )
        self._own(self.starter.run())
        self.templates = TemplateService(database, self.captures)
        self.telemetry = Telemetry(settings.logs_dir.resolve(), settings.metrics_interval)
        known = await database.run(lambda c: store.in_states(c, {State.PAUSED, *LIVE}))
        await self.telemetry.start([sandbox.id for sandbox in known])
        stack.push_async_callback(self.telemetry.close)
        core = Core(
            database=database,
            captures=self.captures,
            machines=machines,
            starter=self.starter,
            activity=activity,
            telemetry=self.telemetry,
            limits=_limits(settings, memory.total),
            max_timeout=settings.max_timeout,
        )
        reserve = Reserve(settings.home / "reserve", settings.reserve_mib << 20)
        self.sandboxes = SandboxService(core, settings.max_fork, reserve)
        stack.push_async_callback(self.sandboxes.close, CLOSE_SECONDS)
        self.sandboxes.room.on_full += [self.images.give_up, self.disks.give_up]
        await self._start_builder(core)
        await recovery.adopt(core, survivors)
        self._own(self.sandboxes.watch_deadlines())
        self._own(self.sandboxes.room.run())
        self._own(Compaction(core, self.runtime, reserve).run())
        self._own(self.telemetry.run())
        with progress.step("first spare VM"):
            await self.starter.hot.first(template.build.capture_id, FIRST_SPARE_SECONDS)

    async def _images(self, resources: Resources) -> ImageService:
        settings = self._settings
        blobs = BlobStore(settings.blobs_dir.resolve(), max_bytes=settings.image_cache_mib << 20)
        await blobs.open()
        catalog = await self._stack.enter_async_context(
            ImageCatalog(
                registries=listed(settings.image_registries), insecure=listed(settings.insecure_registries)
            )
        )
        converter = Converter(self.runtime, self.disks, settings.disk_mib)
        return ImageService(catalog, blobs, converter, resources)

    async def _start_builder(self, core: Core) -> None:
        settings = self._settings
        self.uploads = Uploads(
            settings.uploads_dir.resolve(),
            most_bytes=settings.uploads_mib << 20,
            most_each=settings.max_upload_mib << 20,
        )
        await self.uploads.start()
        self.builder = Builder(
            Tools(core, self.disks, self.uploads, self.images, repr(self.runtime.identity)),
            BuildLogs(settings.build_logs_dir.resolve()),
            at_once=settings.concurrent_builds,
            most_seconds=settings.max_build_time,
        )
        await self.builder.settle()
        self.templates.on_deleted = self.builder.cancel_template
        self._own(self.builder.run())
        self._stack.push_async_callback(self.builder.close)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the node stops."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_note_early_end)
        self._stack.push_async_callback(cancel, task)

    async def stop(self) -> None:
        """Pause what runs, then give everything back, in the reverse order of the start."""
        await self._stack.aclose()


def _note_early_end(task: asyncio.Task[None]) -> None:
    """Work that is to go on until the node stops has ended: if by a failure, nobody else says so before."""
    if not task.cancelled() and (error := task.exception()) is not None:
        unexpected.note("tasks", "a part of the server has ended", error)


def _limits(settings: Settings, host_bytes: int) -> Limits:
    """What all running sandboxes may have together, from what the host has."""
    cpus = host.cpus() * settings.cpu_overcommit
    memory = (host_bytes >> 20) * settings.memory_overcommit
    return Limits(cpus or math.inf, memory or math.inf)


def _plan(settings: Settings, host_bytes: int) -> MemoryPlan:
    """What spare machines may hold, and what starts leave free, from what the host has."""
    budget, reserve = settings.spare_memory_mib, settings.reserved_memory_mib
    return MemoryPlan(
        host_bytes // 4 if budget is None else budget << 20,
        host_bytes // 20 if reserve is None else reserve << 20,
    )


def _claim_home(settings: Settings) -> int:
    """Make the folders and lock the home; returns the lock's descriptor."""
    home = settings.home
    try:
        folders = (settings.workspace_dir, settings.captures_dir, settings.images_dir, settings.logs_dir)
        for folder in (home, *folders):
            folder.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostNotReady(
            f"can't use {home}: {error.strerror}; set AENV_HOME to a folder you own"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise HostNotReady(f"another server uses {home}: stop it, or set AENV_HOME for this one") from error
    return descriptor


def _empty(folder: Path, keep: Collection[Path]) -> None:
    """Remove what is in a folder but `keep`; the VMs that used it have ended."""
    for entry in folder.iterdir():
        if entry not in keep:
            shutil.rmtree(entry, ignore_errors=True)


async def prepare(settings: Settings, progress: Progress) -> None:
    """Make everything that a first start makes: guest bundle, root file system, `base` template."""
    node = Node(settings.model_copy(update={"hot_vms": 0, "bare_vms": 0}))
    await node.start(progress)
    await node.stop()
