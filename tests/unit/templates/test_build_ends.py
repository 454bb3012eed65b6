"""Builds that fail, are cancelled, wait, or are cut off: they say why and leave nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from aenv.errors import Conflict, NotFound, RuntimeFailure, StorageFailure, TemplateNotFound
from aenv.runtimes.base import Capture
from aenv.sandboxes.models import Build
from aenv.templates import construction, executor, jobs
from aenv.templates.jobs import Size
from aenv.templates.plan import FromTemplate, Plan
from aenv.templates.steps import parse
from tests.unit.sandboxes.conftest import eventually
from tests.unit.templates.conftest import HASH, Builds


async def test_a_failed_command(builds: Builds) -> None:
    before = builds.machines()
    job = await builds.failed(["RUN", "put a 1"], ["RUN", "echo first && warn second && fail 3"])
    assert job.reason is not None
    assert job.reason.step == "2"
    for part in ("RUN echo first", "exit code 3", "\nfirst\nsecond"):
        assert part in job.reason.message
    log = await builds.node.builder.log(job.id)
    assert "[2/2] [stderr]: second" in [entry.message for entry in log if entry.step == "2"]
    assert log[-1].level == "error"
    assert builds.machines() == before
    with pytest.raises(TemplateNotFound):
        await builds.node.templates.find("mine")
    builds.runtime.commands.clear()
    await builds.build(["RUN", "put a 1"], ["RUN", "echo better"])
    assert builds.runtime.commands == ["echo better"]


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (["RUN", "x", "nobody"], "invalid username"),
        (["USER", "nobody:nogroup"], "invalid username"),
        (["USER", "$NOTHING"], "can't be a user"),
        (["COPY", "a.txt", "/opt/"], "not uploaded"),
    ],
)
async def test_steps_that_cannot_be_done(builds: Builds, step: list[str], word: str) -> None:
    job = await builds.failed(step, files_hash=HASH)
    assert job.reason is not None
    assert job.reason.step == "1"
    assert word in job.reason.message


async def test_accounts_that_are_too_large_to_be_held(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_MOST_ACCOUNTS", 1000)
    job = await builds.failed(["RUN", f"put /etc/group {'x' * 2000}"], ["USER", "bob"])
    assert job.reason is not None
    assert job.reason.step == "2"
    assert "/etc/group is larger" in job.reason.message


async def test_an_archive_of_no_use_is_asked_for_again(builds: Builds) -> None:
    await builds.upload(a_txt="x")
    job = await builds.failed(["COPY", "b.txt", "/opt/"], files_hash=HASH)
    assert job.reason is not None
    assert "nothing in the archive" in job.reason.message
    assert not await builds.node.uploads.has(HASH)


async def test_the_start_command_fails(builds: Builds) -> None:
    job = await builds.failed(start_command="echo oh && fail 4", ready_command="fail 1")
    assert job.reason is not None
    assert job.reason.step == "finalize"
    assert "exit code 4" in job.reason.message
    assert "\noh" in job.reason.message


async def test_never_ready(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(construction, "READY_SECONDS", 0.3)
    monkeypatch.setattr(construction, "READY_RETRY_SECONDS", 0.05)
    for ready in ("fail 1", "hang"):
        job = await builds.failed(start_command="hang", ready_command=ready)
        assert job.reason is not None
        assert "not ready after" in job.reason.message


async def test_ready_at_a_later_try(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(construction, "READY_RETRY_SECONDS", 0.05)
    job = await builds.begin(start_command="hang", ready_command="has up")

    async def waits() -> bool:
        return builds.runtime.commands.count("has up") > 2

    await eventually(waits, 30)
    for instance in builds.runtime.instances.values():
        instance.guest._unwritten["up"] = "1"
    assert (await builds.end(job)).status == "ready"


async def test_a_vm_that_dies(builds: Builds) -> None:
    job = await builds.begin(["RUN", "hang"])

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    for instance in list(builds.runtime.instances.values()):
        instance.die("killed")
    ended = await builds.end(job)
    assert ended.reason is not None
    assert "the VM ended: killed" in ended.reason.message
    assert ended.reason.step == "1"


@pytest.mark.parametrize("operation", ["boot", "load", "spawn", "capture"])
async def test_a_runtime_that_fails(builds: Builds, operation: str) -> None:
    builds.runtime.order_failure(operation, RuntimeFailure("no luck"))
    job = await builds.failed(["RUN", "put a 1"], start_command="echo x", ready_command="echo y")
    assert job.reason is not None
    assert "no luck" in job.reason.message
    await builds.build(["RUN", "put a 1"], start_command="echo x", ready_command="echo y")


async def test_a_full_disk_ends_a_build(builds: Builds) -> None:
    job = await builds.begin(["RUN", "hang"])

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    for instance in builds.runtime.instances.values():
        instance.stall()
    ended = await builds.end(job)
    assert ended.reason is not None
    assert "disk is full" in ended.reason.message


async def test_cancel(builds: Builds) -> None:
    job = await builds.begin(["RUN", "put a 1"], ["RUN", "hang"])

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    await builds.node.builder.cancel("mine", job.id)
    assert not builds.runtime.instances
    ended = await builds.end(job)
    assert ended.reason is not None
    assert ended.reason.message == "the build was cancelled"
    with pytest.raises(Conflict):
        await builds.node.builder.cancel("mine", job.id)
    waiting, _ = await builds.node.builder.request("mine", (), Size())
    await builds.node.builder.cancel(job.template_id, waiting.id)
    with pytest.raises(Conflict, match="started already"):
        await builds.node.builder.start("mine", waiting.id, Plan(FromTemplate("base")))


@pytest.mark.parametrize("works", [True, False])
async def test_cancelled_while_it_is_recorded(
    builds: Builds, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready, or nothing is left of it."""
    builder = builds.node.builder
    recording, goes_on, recorded = asyncio.Event(), asyncio.Event(), builder._record

    async def record(job: jobs.Job, build: Build, capture: Capture | None) -> None:
        recording.set()
        await goes_on.wait()
        if not works:
            raise StorageFailure("not now")
        await recorded(job, build, capture)

    monkeypatch.setattr(builder, "_record", record)
    before = set(builds.captures())
    job = await builds.begin()
    await recording.wait()
    cancelling = asyncio.ensure_future(builder.cancel("mine", job.id))
    await asyncio.sleep(0)
    builder._running[job.id].cancel()
    goes_on.set()
    await cancelling
    ended = await builds.end(job)
    assert ended.status == ("ready" if works else "error")
    assert len(set(builds.captures()) - before) == 1 + works  # the parent's settled disk


async def test_deleting_a_template_cancels_its_builds(builds: Builds) -> None:
    await builds.build(["RUN", "put a 1"])
    job = await builds.begin(["RUN", "hang"])

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    await builds.node.templates.delete("mine")

    async def gone() -> bool:
        return not builds.runtime.instances

    await eventually(gone, 30)
    with pytest.raises(NotFound):
        await builds.node.builder.find("mine", job.id)
    first = await builds.begin(["RUN", "hang"], name="unbuilt")
    await builds.node.templates.delete("unbuilt")
    await eventually(gone, 30)
    with pytest.raises(NotFound):
        await builds.node.builder.find("unbuilt", first.id)


async def test_the_last_tag_of_a_template_that_is_built_goes(builds: Builds) -> None:
    await builds.build(["RUN", "put a 1"], name="mine:v1")
    job = await builds.begin(["RUN", "put a 1"], ["RUN", "put b 1"], name="mine:v2")
    await builds.node.templates.remove_tags("mine", ["v1"])
    assert (await builds.end(job)).status == "ready"
    assert (await builds.node.templates.find("mine")).tag == "v2"


async def test_the_time_is_bounded(builds: Builds) -> None:
    builds.node.builder._most_seconds = 0.3
    job = await builds.failed(["RUN", "hang"])
    assert job.reason is not None
    assert "AENV_MAX_BUILD_TIME" in job.reason.message


async def test_a_few_at_a_time(builds: Builds) -> None:
    begun = [await builds.begin(["RUN", f"hang {number}"], name=f"n{number}") for number in range(3)]

    async def two() -> bool:
        return len(builds.runtime.commands) == 2

    await eventually(two, 30)
    (waiting,) = [job for job in begun if not await _has_begun(builds, job.id)]
    assert "waiting: 2 other templates" in (await builds.log(waiting))[0]
    for job in begun:
        await builds.node.builder.cancel(job.template_id, job.id)


async def _has_begun(builds: Builds, build_id: str) -> bool:
    return any(entry.message.startswith("FROM") for entry in await builds.node.builder.log(build_id))


async def test_a_build_waits_for_room(builds: Builds) -> None:
    job = await builds.begin(["RUN", "put a 1"], size=Size(memory_mib=10**9))

    async def waits() -> bool:
        return any("waiting for room" in line for line in await builds.log(job))

    await eventually(waits, 30)
    await builds.node.builder.cancel("mine", job.id)


async def test_a_build_counts_as_one_that_runs(builds: Builds) -> None:
    job = await builds.begin(["RUN", "hang"], size=Size(3, 1000))

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    admitted = (await builds.node.sandboxes.census()).admitted
    assert (admitted.cpus, admitted.memory_mib) == (3, 1000)
    await builds.node.builder.cancel("mine", job.id)
    assert (await builds.node.sandboxes.census()).admitted.cpus == 0


async def test_what_a_start_refuses(builds: Builds) -> None:
    job, _ = await builds.node.builder.request("mine", (), Size())
    builder = builds.node.builder
    with pytest.raises(TemplateNotFound):
        await builder.start("mine", job.id, Plan(FromTemplate("none")))
    with pytest.raises(NotFound):
        await builder.start("other", job.id, Plan(FromTemplate("base")))
    with pytest.raises(NotFound):
        await builder.start("mine", "no-build", Plan(FromTemplate("base")))
    await builder.start("mine", job.id, Plan(FromTemplate("base")))
    with pytest.raises(Conflict, match="started already"):
        await builder.start("mine", job.id, Plan(FromTemplate("base")))
    assert (await builds.end(job)).status == "ready"


async def test_old_builds_are_forgotten(builds: Builds) -> None:
    kept = await builds.build(["RUN", "put a 1"], name="kept")
    failed = await builds.failed(["RUN", "fail 1"], name="failed")
    now = time.time() + jobs.KEPT_SECONDS + 1
    left = await builds.node.builder._database.run(lambda c: jobs.forget_old(c, now))
    assert left == {kept.build.id}
    with pytest.raises(NotFound):
        await builds.node.builder.find("failed", failed.id)


async def test_layers_are_not_kept_by_what_failed(builds: Builds) -> None:
    """All that a failed build leaves is what the cache has of its finished steps."""
    before = set(builds.captures())
    await builds.failed(["RUN", "put a 1"], ["RUN", "fail 1"])
    new = set(builds.captures()) - before
    assert len(new) == 2  # the parent's settled disk, and the first step's


async def test_stop_ends_builds_and_the_next_server_says_so(builds: Builds) -> None:
    job = await builds.begin(["RUN", "put a 1"], ["RUN", "hang"])

    async def hangs() -> bool:
        return "hang" in builds.runtime.commands

    await eventually(hangs, 30)
    await builds.node.builder.close()
    ended = await builds.end(job)
    assert ended.reason is not None
    assert "the server was stopped" in ended.reason.message


async def test_what_a_killed_server_was_building_is_an_error(builds: Builds) -> None:
    builder = builds.node.builder
    job, _ = await builder.request("mine", (), Size())
    waiting, _ = await builder.request("mine", (), Size())
    await builder._database.run(lambda c: jobs.change(c, job, "building"))  # as its last record says
    await builder.settle()
    ended = await builder.find("mine", job.id)
    assert ended.status == "error"
    assert ended.reason is not None
    assert "finished steps are kept" in ended.reason.message
    assert (await builder.find("mine", waiting.id)).status == "waiting"


async def test_a_client_that_goes_away_leaves_a_whole_build(builds: Builds) -> None:
    job, _ = await builds.node.builder.request("mine", (), Size())
    step = parse("RUN", ["put a 1"], None, force=False)
    starting = asyncio.ensure_future(
        builds.node.builder.start("mine", job.id, Plan(FromTemplate("base"), (step,)))
    )
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    assert (await builds.end(job)).status == "ready"
