"""One build of a template: from its parent's disk, step by step, to a capture with the start command running.

The disk after each step is cached by all that it came from, and a VM boots only for the first step whose disk
isn't there. The last VM is always a fresh one, so that a template is the same whatever was cached.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass

import structlog

from aenv.errors import AenvError, RuntimeFailure
from aenv.images.models import Credentials
from aenv.images.service import ImageService
from aenv.images.sources import Source
from aenv.runtimes.base import Capture, Resources
from aenv.sandboxes.core import Core
from aenv.sandboxes.machines import Machine
from aenv.sandboxes.models import Build, Defaults
from aenv.snapshots.disk_cache import DiskCache, key_over
from aenv.tasks import finish
from aenv.templates import store
from aenv.templates.bench import Bench
from aenv.templates.build_log import BuildLog
from aenv.templates.commands import ROOT, Commands, Output, StepFailed, while_alive
from aenv.templates.context import DEFAULT_USER, Context
from aenv.templates.executor import Executor
from aenv.templates.jobs import Job
from aenv.templates.layers import Layers
from aenv.templates.plan import FromArchive, FromImage, Plan
from aenv.templates.steps import Step
from aenv.templates.uploads import Uploads

log = structlog.get_logger()

BASE_STEP = "base"
FINAL_STEP = "finalize"
"""What clients call the steps before the first and after the last one."""

READY_RETRY_SECONDS = 2.0
READY_SECONDS = 600.0
"""How often, and for how long, the ready command is tried, as in E2B."""

DISK_STEP_MIB = 1024
"""A disk grows by a multiple of this."""

DEFAULT_READY_COMMAND = "sleep 20"
"""When there is a start command without one, as in E2B."""


@dataclass(frozen=True)
class Tools:
    """What builds are made with."""

    core: Core
    cache: DiskCache
    uploads: Uploads
    images: ImageService
    identity: str
    """The runtime's: what was captured under another can't be started."""


class BuildFailed(AenvError):
    """A build failed at a step, or before or after all of them."""

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class _Stage:
    """How far a build is: a disk, by what it is cached, and what the next step sees."""

    key: str
    disk: Capture
    context: Context


class Construction:
    """One build. `run` makes it; nothing but cached disks is left of one that fails or is cancelled."""

    def __init__(self, tools: Tools, job: Job, plan: Plan, build_log: BuildLog, layers: Layers) -> None:
        """`layers` hears how far those of the image are that the build begins with, if it does."""
        self._core = tools.core
        self._tools = tools
        self._job = job
        self._plan = plan
        self._log = build_log
        self._layers = layers
        self._kept = ExitStack()
        self._forced = plan.force
        self._bench = Bench(tools.core, job.id, build_log)

    async def run(self, record: Callable[[Build, Capture | None], Awaitable[None]]) -> None:
        """Build, and have it recorded with its capture, which is new, or None if it is there already.

        Raises BuildFailed.
        """
        with self._kept:
            async with self._bench:
                with _at(BASE_STEP):
                    stage, resources = await self._origin()
                stage = await self._steps(stage, resources)
                with _at(FINAL_STEP):
                    await self._finish(stage, resources, record)

    # The parent

    async def _origin(self) -> tuple[_Stage, Resources]:
        origin = self._plan.origin
        if isinstance(origin, FromImage):
            return await self._from_image(origin.reference, origin.reference, origin.credentials)
        if isinstance(origin, FromArchive):
            return await self._from_archive(origin)
        self._log.say(f"FROM template {origin.name}", step=BASE_STEP)
        core, cache = self._core, self._tools.cache
        template = await core.database.run(lambda c: store.resolve(c, origin.name))
        build = template.build
        self._kept.enter_context(core.captures.kept(build.capture_id))
        capture = await core.captures.get(build.capture_id)
        key = key_over("", "build", build.made_by or build.id)
        self._kept.enter_context(cache.kept(key))
        disk = await self._settled(key, capture) if capture.memory else capture
        defaults = build.defaults
        context = Context(env=defaults.env, user=defaults.user or DEFAULT_USER, workdir=defaults.workdir)
        return _Stage(key, disk, context), self._sized(build.resources)

    async def _from_archive(self, origin: FromArchive) -> tuple[_Stage, Resources]:
        with self._tools.uploads.using(origin.files_hash) as path:
            if not await self._tools.uploads.has(origin.files_hash):
                raise StepFailed("the image's archive was not uploaded, or long ago: build again")
            source = self._tools.images.local(path, tag=origin.tag, is_root=origin.is_root)
            return await self._from_image("the uploaded archive", source, None)

    async def _from_image(
        self, what: str, image_or_name: str | Source, credentials: Credentials | None
    ) -> tuple[_Stage, Resources]:
        self._log.say(f"FROM {what}", step=BASE_STEP)

        def say(line: str) -> None:
            self._log.say(line, step=BASE_STEP)

        image = await self._tools.images.get(
            image_or_name,
            credentials,
            say,
            keep=self._kept,
            disk_mib=self._job.size.disk_mib,
            progress=self._layers,
        )
        config = image.config
        as_docker = self._plan.docker_defaults
        user = config.user or (ROOT if as_docker else DEFAULT_USER)
        workdir = config.working_dir if config.working_dir not in {"", "/"} else "/" if as_docker else None
        context = Context(env=dict(config.env), user=user, workdir=workdir)
        return _Stage(image.key, image.capture, context), self._sized(image.capture.resources)

    def _sized(self, parent: Resources) -> Resources:
        size = self._job.size
        if size.disk_mib is not None and size.disk_mib < parent.disk_mib:
            raise StepFailed(f"the disk has {parent.disk_mib} MiB already, and can't be made smaller")
        return dataclasses.replace(
            parent,
            cpu_count=size.cpu_count or parent.cpu_count,
            memory_mib=size.memory_mib or parent.memory_mib,
        )

    async def _settled(self, key: str, capture: Capture) -> Capture:
        """The disk of a capture with memory, with what that holds and the disk hasn't got yet."""
        try:
            self._core.machines.key(capture)
        except RuntimeFailure as error:
            self._log.say(f"the parent's disk is used as it is: {error.message}", level="warn")
            return capture

        return await self._tools.cache.obtain(key, lambda folder: self._bench.settle(capture, folder))

    # The steps

    async def _steps(self, stage: _Stage, resources: Resources) -> _Stage:
        """Do all steps, or find what they come to.

        Two builds that want the same disk make it once. The turn to make the next one is taken before the
        last one's is given up, so that of two builds alike one stays ahead, and the other has no VM.
        """
        turn = AsyncExitStack()
        try:
            for number, step in enumerate(self._plan.steps, 1):
                with _at(str(number)):
                    if step.changes_disk:
                        key = step.key(stage.key, stage.context)
                        self._kept.enter_context(self._tools.cache.kept(key))
                        following = AsyncExitStack()
                        await following.enter_async_context(self._tools.cache.making(key))
                        await turn.aclose()
                        turn = following
                        disk = await self._step(number, step, key, stage, resources)
                        stage = dataclasses.replace(stage, key=key, disk=disk)
                    else:
                        self._log.say(f"{self._prefix(number)} {step.action}", step=str(number))
                    stage = dataclasses.replace(stage, context=step.after(stage.context))
        finally:
            await turn.aclose()
        return stage

    async def _step(self, number: int, step: Step, key: str, stage: _Stage, resources: Resources) -> Capture:
        prefix, cache = self._prefix(number), self._tools.cache
        self._forced = self._forced or step.force
        if not self._forced and (cached := await cache.get(key)) is not None:
            self._log.say(f"CACHED {prefix} {step.action}", step=str(number))
            await self._bench.clear()
            return cached
        self._log.say(f"{prefix} {step.action}", step=str(number))
        began = time.monotonic()
        machine = self._bench.machine or await self._bench.boot(stage.disk, resources, stage.context)
        executor = Executor(machine, self._tools.uploads, self._log)
        await executor.do(step, stage.context, prefix=prefix, number=str(number))
        captured = await self._bench.capture_disk()
        await cache.put(key, captured.id, captured.capture)
        self._log.say(f"{prefix} done in {time.monotonic() - began:.1f} s", step=str(number), level="debug")
        return captured.capture

    def _prefix(self, number: int) -> str:
        return f"[{number}/{len(self._plan.steps)}]"

    # The end

    async def _finish(
        self,
        stage: _Stage,
        resources: Resources,
        record: Callable[[Build, Capture | None], Awaitable[None]],
    ) -> None:
        plan, context, core = self._plan, stage.context, self._core
        ready = plan.ready_command or (DEFAULT_READY_COMMAND if plan.start_command else None)
        defaults = Defaults(context.env, context.user, context.workdir, plan.start_command, ready)
        size = f"{resources!r} {self._job.size.min_free_disk_mib} {self._job.size.disk_mib or 0}"
        what = (plan.start_command or "", ready or "", context.key(), size, self._tools.identity)
        key = key_over(stage.key, "template", *what)
        built = Build(self._job.id, "", resources, time.time(), None, defaults, key)
        async with self._tools.cache.making(key):
            known = None if self._forced else await core.database.run(lambda c: store.by_key(c, key))
            if known is not None:
                with core.captures.kept(known.capture_id):
                    if await self._is_whole(known.capture_id):
                        self._log.say("CACHED start", step=FINAL_STEP)
                        same = dataclasses.replace(
                            built,
                            capture_id=known.capture_id,
                            resources=known.resources,
                            made_by=known.made_by or known.id,
                        )
                        await record(same, None)
                        return
            machine = await self._bench.boot(stage.disk, resources, context)
            if larger := await self._larger(machine, resources):
                resources = larger
                machine = await self._bench.boot(stage.disk, resources, context)
                await while_alive(machine, machine.guest.grow())
            await while_alive(machine, self._start(machine, context, ready))
            self._log.say("taking the template's snapshot", step=FINAL_STEP)
            captured = await self._bench.capture()
            try:
                await self._bench.clear()
                await core.captures.sync(captured.capture)
            except BaseException:
                await finish(core.captures.discard(captured.id))
                raise
            build = dataclasses.replace(
                built, capture_id=captured.id, resources=resources, created_at=time.time()
            )
            await finish(self._recorded(record, build, captured.capture))

    async def _recorded(
        self,
        record: Callable[[Build, Capture | None], Awaitable[None]],
        build: Build,
        capture: Capture,
    ) -> None:
        """Have a build recorded, or its capture is gone; not to be cut off, lest nobody knows which."""
        try:
            await record(build, capture)
        except BaseException:
            await self._core.captures.discard(build.capture_id)
            raise

    async def _larger(self, machine: Machine, resources: Resources) -> Resources | None:
        """The size with a disk as large, and with as much free space, as was asked for; None if it is so."""
        metrics = await while_alive(machine, machine.guest.metrics())
        free = (metrics.disk_total - metrics.disk_used) >> 20
        missing = max(0, self._job.size.min_free_disk_mib - free)
        missing += missing // 32  # what the file system itself takes of it
        grown = resources.disk_mib + -(-missing // DISK_STEP_MIB) * DISK_STEP_MIB
        grown = max(grown, self._job.size.disk_mib or 0)
        if grown == resources.disk_mib:
            return None
        self._log.say(f"the disk grows from {resources.disk_mib} to {grown} MiB", step=FINAL_STEP)
        return dataclasses.replace(resources, disk_mib=grown)

    async def _is_whole(self, capture_id: str) -> bool:
        try:
            await self._core.captures.get(capture_id)
        except RuntimeFailure:
            return False
        return True

    async def _start(self, machine: Machine, context: Context, ready: str | None) -> None:
        commands = Commands(machine)
        command = self._plan.start_command
        if command is None:
            if ready is not None:
                await self._until_ready(commands, context, ready, None)
            return
        self._log.say(f"[start] {command}", step=FINAL_STEP)
        output = Output(self._log, "[start]", FINAL_STEP)
        async with commands.running(command, context, output) as ended:
            waiting = self._until_ready(commands, context, ready or DEFAULT_READY_COMMAND, ended)
            try:
                await waiting
            except _Ended as error:
                raise output.failure(f"the start command {command}", error.code) from error

    async def _until_ready(
        self, commands: Commands, context: Context, ready: str, ended: asyncio.Future[int] | None
    ) -> None:
        """Try the ready command until it succeeds. A start command that ends well may have left a daemon."""
        self._log.say(f"[ready] {ready}", step=FINAL_STEP)
        output = Output(self._log, "[ready]", FINAL_STEP)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while await commands.run(ready, context, output) != 0:
                    _check_running(ended)
                    await asyncio.sleep(READY_RETRY_SECONDS)
                _check_running(ended)
        except TimeoutError as error:
            raise StepFailed(f"not ready after {READY_SECONDS:g} s: {ready}") from error


class _Ended(Exception):
    """The start command has failed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _check_running(ended: asyncio.Future[int] | None) -> None:
    if ended is not None and ended.done() and (code := ended.result()) != 0:
        raise _Ended(code)


@contextmanager
def _at(step: str) -> Iterator[None]:
    """What fails in the block failed at this step."""
    try:
        yield
    except BuildFailed:
        raise
    except AenvError as error:
        raise BuildFailed(error.message, step) from error
