"""Builds of templates as the HTTP edge sees them: asked for, started, looked at, cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from aenv import unexpected
from aenv.errors import AenvError, Conflict, NotFound, ShuttingDown, StorageFailure
from aenv.runtimes.base import Capture
from aenv.sandboxes.models import Build
from aenv.tasks import cancel, finish
from aenv.templates import jobs, names, store, tags
from aenv.templates.base import BASE
from aenv.templates.build_log import BuildLog, BuildLogEntry, BuildLogs
from aenv.templates.construction import (
    FINAL_STEP,
    BuildFailed,
    Construction,
    Tools,
)
from aenv.templates.jobs import Job, Reason, Size, Status
from aenv.templates.layers import LayerProgress, Layers
from aenv.templates.names import DEFAULT_TAG
from aenv.templates.plan import FromImage, FromTemplate, Plan

log = structlog.get_logger()

RETRY_SECONDS = 1.0
"""Rest before the database is asked again to record how a build ended."""

TIDY_SECONDS = 3600.0
"""How often old builds are forgotten."""

MOST_WAITING = 100
"""Builds that may be under way, those included that wait for their turn."""

OUR_BASE = frozenset({"e2bdev/base", "e2bdev/base:latest"})
"""The image that an SDK builds from when it is told nothing: this server's `base` stands for it."""

CANCELLED = "the build was cancelled"
INTERRUPTED = "the server was stopped while the template was built; build it again: finished steps are kept"


class Builder:
    """The builds of one node: `at_once` at a time, each at most `most_seconds` long."""

    def __init__(self, tools: Tools, logs: BuildLogs, *, at_once: int, most_seconds: float) -> None:
        self._tools = tools
        self._database = tools.core.database
        self._logs = logs
        self._at_once = at_once
        self._turns = asyncio.Semaphore(at_once)
        self._most_seconds = most_seconds
        self._running: dict[str, asyncio.Task[None]] = {}
        self._templates: dict[str, str] = {}
        """Of each build under way, its template."""
        self._why: dict[str, str] = {}
        """Why a build under way was cancelled."""
        self._layers: dict[str, Layers] = {}
        """Of each build under way."""
        self._closing = False

    async def settle(self) -> None:
        """At start: what an earlier server was building came to nothing."""

        def transaction(connection: sqlite3.Connection) -> list[Job]:
            found = jobs.under_way(connection)
            for job in found:
                jobs.change(connection, job, "error", Reason(INTERRUPTED))
            return found

        for job in await self._database.run(transaction):
            log.warning("a build was interrupted", build=job.id, template=job.template_id)
        await self._forget_old()

    async def run(self) -> None:
        """Forget old builds until cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            with suppress(AenvError, OSError):
                await self._forget_old()

    async def close(self) -> None:
        """Cancel every build and wait for its end."""
        self._closing = True
        for build_id in self._running:
            self._why.setdefault(build_id, INTERRUPTED)
        await cancel(*self._running.values())

    async def request(self, name: str, wanted: Sequence[str], size: Size) -> tuple[Job, str]:
        """A new build that waits for its steps, and the name of its template. Raises InvalidRequest.

        When it is ready the tags point to it: the name's and those `wanted`, else `default`.
        """
        parsed = names.parse(name)
        every = [*([] if parsed.tag is None else [parsed.tag]), *map(names.parse_tag, wanted)]
        unique = list(dict.fromkeys(every)) or [DEFAULT_TAG]
        job = await self._database.run(lambda c: jobs.request(c, parsed, unique, size))
        return job, parsed.alias

    async def start(self, template: str, build_id: str, plan: Plan) -> None:
        """Give a waiting build its steps; returns at once.

        Raises NotFound, Conflict if it has them already, TemplateNotFound for its parent.
        """
        if self._closing:
            raise ShuttingDown
        if isinstance(plan.origin, FromImage) and plan.origin.reference in OUR_BASE:
            plan = dataclasses.replace(plan, origin=FromTemplate(BASE))
        if len(self._running) >= MOST_WAITING:
            raise Conflict(f"{MOST_WAITING} templates are being built already: wait for one to end")

        def transaction(connection: sqlite3.Connection) -> Job:
            job = jobs.find(connection, template, build_id)
            if job.status != "waiting":
                raise Conflict(f"build {build_id!r} was started already: ask for a new one")
            if isinstance(plan.origin, FromTemplate):
                store.resolve(connection, plan.origin.name)
            changed = jobs.change(connection, job, "building")
            if changed is None:
                raise NotFound(f"build {build_id!r} was not found")
            return changed

        await finish(self._begin(transaction, plan))

    async def _begin(self, transaction: Callable[[sqlite3.Connection], Job], plan: Plan) -> None:
        """Record that the build has begun, and begin it: both or neither, whoever goes away."""
        job = await self._database.run(transaction)
        log.info("a template is being built", build=job.id, template=job.template_id)
        task = asyncio.ensure_future(self._build(job, plan))
        self._running[job.id], self._templates[job.id] = task, job.template_id
        self._layers[job.id] = Layers()
        task.add_done_callback(lambda _done: self._forget(job.id))

    def _forget(self, build_id: str) -> None:
        for known in (self._running, self._templates, self._why, self._layers):
            known.pop(build_id, None)

    async def check_template(self, name: str) -> None:
        """Raise TemplateNotFound unless there is such a template, perhaps without a build yet."""

        await self._database.run(lambda connection: _template_id(connection, name))

    async def find(self, template: str, build_id: str) -> Job:
        """A build and how it goes. Raises NotFound."""
        return await self._database.run(lambda c: jobs.find(c, template, build_id))

    async def of_template(self, template: str) -> Sequence[Job]:
        """What is known of the builds of a template, by its id or name, newest first.

        Raises TemplateNotFound.
        """

        def transaction(connection: sqlite3.Connection) -> Sequence[Job]:
            return jobs.of_template(connection, _template_id(connection, template))

        return await self._database.run(transaction)

    def layers(self, build_id: str) -> Sequence[LayerProgress]:
        """How far the layers are that are fetched for a build under way; of any other, none."""
        known = self._layers.get(build_id)
        return () if known is None else known.now()

    async def log(self, build_id: str) -> Sequence[BuildLogEntry]:
        """The log of a build, so far."""
        return await self._logs.read(build_id)

    async def cancel(self, template: str, build_id: str) -> None:
        """End a build that isn't over; its VM is gone when this returns. Raises NotFound, Conflict."""
        job = await self.find(template, build_id)
        if job.is_over:
            raise Conflict(f"build {build_id!r} is over")
        task = self._running.get(job.id)
        if task is None:
            await self._end(job, "error", Reason(CANCELLED))
        else:
            await self._cancel(job.id, task, CANCELLED)

    def cancel_template(self, template_id: str) -> None:
        """Its template was deleted: end the builds under way."""
        for build_id, task in self._running.items():
            if self._templates[build_id] == template_id:
                self._why.setdefault(build_id, "its template was deleted")
                task.cancel()

    async def _cancel(self, build_id: str, task: asyncio.Task[None], why: str) -> None:
        self._why.setdefault(build_id, why)
        task.cancel()
        await asyncio.wait([task])

    async def _build(self, job: Job, plan: Plan) -> None:
        """One build from its turn to its end, however that comes."""
        async with self._logs.open(job.id) as build_log:
            reason = await self._failure(job, plan, build_log)
            if reason is not None:
                build_log.say(reason.message, step=reason.step, level="error")
                log.warning("a build failed", build=job.id, step=reason.step, reason=reason.message)
                await finish(self._end_failed(job, reason, build_log))

    async def _failure(self, job: Job, plan: Plan, build_log: BuildLog) -> Reason | None:
        """Build; why it failed or was cancelled, if so."""
        try:
            await self._in_turn(job, plan, build_log)
        except asyncio.CancelledError:
            return Reason(self._why.get(job.id, CANCELLED))
        except BuildFailed as error:
            return Reason(error.message, error.step)
        except TimeoutError:
            return Reason(f"the build took longer than {self._most_seconds:g} s (AENV_MAX_BUILD_TIME)")
        except Exception as error:  # noqa: BLE001 (whoever asked for it must hear of it)
            unexpected.note("templates", "a build failed unforeseen", error, build=job.id)
            return Reason(f"the server failed: {error}")
        return None

    async def _end_failed(self, job: Job, reason: Reason, build_log: BuildLog) -> None:
        await build_log.write()  # whoever sees the state may ask for the last of the log
        await self._end(job, "error", reason)

    async def _in_turn(self, job: Job, plan: Plan, build_log: BuildLog) -> None:
        if self._turns.locked():
            build_log.say(f"waiting: {self._at_once} other templates are being built")
        async with self._turns, asyncio.timeout(self._most_seconds):
            began = time.monotonic()

            async def record(build: Build, capture: Capture | None) -> None:
                build_log.say(f"ready after {time.monotonic() - began:.1f} s", step=FINAL_STEP)
                await build_log.write()
                await self._record(job, build, capture)

            with self._tools.core.activity.operation():
                await Construction(self._tools, job, plan, build_log, self._layers[job.id]).run(record)
        await self._tools.core.tidy()

    async def _record(self, job: Job, build: Build, capture: Capture | None) -> None:
        """The build is ready, and its tags point to it. Raises NotFound if its template is gone."""

        def transaction(connection: sqlite3.Connection) -> None:
            if jobs.change(connection, job, "ready") is None:
                raise NotFound("the template was deleted while it was built")
            if capture is not None:
                self._tools.core.captures.insert(connection, build.capture_id, capture)
            store.add_build(connection, job.template_id, build)
            tags.assign(connection, job.template_id, job.tags, build.id)

        await self._database.run(transaction)
        log.info("a template is ready", build=job.id, template=job.template_id)

    async def _end(self, job: Job, status: Status, reason: Reason) -> None:
        """Record how a build ended; if that can't be done now, as on a full disk, then later."""
        while True:
            try:
                await self._database.run(lambda c: jobs.change(c, job, status, reason))
            except StorageFailure as error:
                log.error("how a build ended can't be recorded", build=job.id, error=str(error))
                if self._closing:
                    return  # the next server does it
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _forget_old(self) -> None:
        kept = await self._database.run(lambda c: jobs.forget_old(c, time.time()))
        await self._logs.forget_others(kept)


def _template_id(connection: sqlite3.Connection, name: str) -> str:
    """The id of a template, perhaps without a build yet. Raises TemplateNotFound."""
    parsed = names.look_up(name)
    unbuilt = None if parsed is None else store.unbuilt(connection, parsed.alias)
    return unbuilt or store.look_up(connection, name).id
