"""The `base` template: Debian, booted once, captured with its agent running."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from aenv import ids
from aenv.database import Database
from aenv.errors import RuntimeFailure
from aenv.images.progress import Progress
from aenv.runtimes.base import BootSpec, Capture, Resources, Runtime
from aenv.sandboxes.machines import Machines
from aenv.sandboxes.models import Build, Template
from aenv.sandboxes.starting import REHEARSAL, SPARE_TIMEOUT
from aenv.snapshots.captures import Captures
from aenv.tasks import finish
from aenv.templates import store, tags
from aenv.templates.names import DEFAULT_TAG

BASE = "base"


async def ensure_base(
    *,
    image: Path,
    resources: Resources,
    runtime: Runtime,
    database: Database,
    captures: Captures,
    machines: Machines,
    progress: Progress,
) -> Template:
    """The `base` template for this runtime and size; made if it isn't there or doesn't fit any more."""
    known = await database.run(lambda c: store.get(c, BASE, DEFAULT_TAG))
    if known is not None and await _fits(known, resources, runtime, captures):
        return known
    with progress.step("base template") as line:
        line("booting")
        capture_id, folder = captures.new()
        try:
            capture = await _boot_and_capture(BootSpec(image, resources), machines, folder)
            line("writing it to disk")
            await captures.sync(capture)
        except BaseException:
            await finish(captures.discard(capture_id))
            raise

        def record(connection: sqlite3.Connection) -> Template:
            template_id = store.add(connection, BASE, None, public=True) if known is None else known.id
            build = Build(ids.new_build_id(), capture_id, resources, time.time())
            captures.insert(connection, capture_id, capture)
            store.add_build(connection, template_id, build)
            tags.assign(connection, template_id, [DEFAULT_TAG], build.id)
            return store.resolve(connection, template_id)

        template = await database.run(record)
        await captures.collect()
        return template


async def _fits(template: Template, resources: Resources, runtime: Runtime, captures: Captures) -> bool:
    """Whether the template can be started, has the size that is asked for and the newest guest."""
    try:
        capture = await captures.get(template.build.capture_id)
        runtime.key(capture)
    except RuntimeFailure:
        return False
    return capture.resources == resources and capture.identity.kernel == runtime.identity.kernel


async def _boot_and_capture(spec: BootSpec, machines: Machines, folder: Path) -> Capture:
    """It rehearses before: what a first command reads and prepares is then in the memory that all share."""
    machine = await machines.boot(spec)
    try:
        await machine.guest.freeze()
        await machine.guest.warm(REHEARSAL, timeout=SPARE_TIMEOUT)
        await machine.instance.freeze()
        return await machine.instance.capture(folder)
    finally:
        await finish(machines.destroy(machine))
