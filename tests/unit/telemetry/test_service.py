"""Collecting from guests, on a whole node of the fake runtime."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.node import Node
from aenv.runtimes.fake_guest import FakeGuest
from aenv.telemetry import service
from aenv.telemetry.logs import LogEntry
from tests.unit.sandboxes.conftest import Rig, eventually, fake_settings

QUICK = 0.05
"""Seconds between samples in these tests."""


@asynccontextmanager
async def running(home: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A started node."""
    chosen = fake_settings(home, **{"hot_vms": 0, "bare_vms": 0, "metrics_interval": 0.0, **settings})
    node = Node(chosen)
    await node.start()
    try:
        yield Rig(node, chosen)
    finally:
        await node.stop()


async def _guest(rig: Rig, sandbox_id: str) -> FakeGuest:
    return (await rig.instance(sandbox_id)).guest


async def _messages(rig: Rig, sandbox_id: str, logger: str = "process") -> list[str]:
    return [entry.message for entry in await rig.node.telemetry.logs(sandbox_id) if entry.logger == logger]


async def _events(rig: Rig, sandbox_id: str) -> list[str]:
    await rig.node.telemetry.close()  # what is to be written is written
    return [e.fields["event"] for e in await rig.node.telemetry.logs(sandbox_id) if e.logger == "sandbox"]


async def test_every_running_sandbox_is_sampled(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval=QUICK) as rig:
        ids = [(await rig.create()).id for _ in range(3)]
        telemetry = rig.node.telemetry

        async def has_history() -> bool:
            return all([len(await telemetry.metrics(each, None, None)) >= 3 for each in ids])

        await eventually(has_history)
        sample = (await telemetry.metrics(ids[0], None, None))[-1]
        assert (sample.cpu_count, sample.mem_used) == (2, 64 << 20)
        assert abs(sample.time - time.time()) < 60, "the server's clock counts, not the guest's"


async def test_the_first_question_takes_a_sample(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        telemetry = rig.node.telemetry
        both = await asyncio.gather(*(telemetry.metrics(sandbox.id, None, None) for _ in range(2)))
        assert [len(samples) for samples in both] == [1, 1], "two questions share one sample"
        assert list(await telemetry.latest([sandbox.id, "unknown"])) == [sandbox.id]
        assert await telemetry.metrics(sandbox.id, None, int(time.time()) - 60) == []


async def test_metrics_outlive_a_pause_but_not_the_sandbox(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval=QUICK) as rig:
        sandbox = await rig.create()
        sandboxes, telemetry = rig.node.sandboxes, rig.node.telemetry
        before = await telemetry.metrics(sandbox.id, None, None)
        await sandboxes.pause(sandbox.id)
        kept = await telemetry.metrics(sandbox.id, None, None)
        assert kept[: len(before)] == before
        await asyncio.sleep(4 * QUICK)  # nothing is to happen meanwhile
        assert await telemetry.metrics(sandbox.id, None, None) == kept
        assert (await sandboxes.get(sandbox.id)).state == "paused"
        await sandboxes.connect(sandbox.id, 60)
        assert len(await telemetry.metrics(sandbox.id, None, None)) >= len(kept)
        await sandboxes.kill(sandbox.id)
        assert await telemetry.latest([sandbox.id]) == {}


@pytest.mark.parametrize("metrics", [{"cpu_count": "x"}, {"mem_used": 2**70}, {"cpu_used_pct": float("nan")}])
async def test_nonsense_is_no_sample(tmp_path: Path, metrics: dict[str, Any]) -> None:
    async with running(tmp_path) as rig:
        bad, good = await rig.create(), await rig.create()
        (await _guest(rig, bad.id)).metrics.update(metrics)
        assert list(await rig.node.telemetry.latest([bad.id, good.id])) == [good.id]


async def test_a_guest_that_never_answers_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GUEST_SECONDS", 0.2)
    async with running(tmp_path, metrics_interval=0) as rig:
        silent, good = await rig.create(), await rig.create()
        (await _guest(rig, silent.id)).responsive.clear()
        telemetry = rig.node.telemetry
        async with asyncio.timeout(2):
            assert await telemetry.metrics(silent.id, None, None) == []
            assert (await telemetry.metrics(good.id, None, None)) != []
            await telemetry.logs(silent.id)
        (await _guest(rig, silent.id)).responsive.set()


async def test_a_question_given_up_before_it_was_asked_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        telemetry = rig.node.telemetry
        asked = asyncio.ensure_future(telemetry.metrics(sandbox.id, None, None))
        await asyncio.sleep(0)  # the question is queued, and hasn't begun
        await telemetry.leave(sandbox.id)
        assert await asked == []
        gc.collect()  # a coroutine that nobody awaited would warn now, which fails this test
        assert len(await telemetry.metrics(sandbox.id, None, None)) == 1


async def test_the_guests_journal_is_collected_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        guest = await _guest(rig, sandbox.id)
        guest.note("one", pid="7")
        assert await _messages(rig, sandbox.id) == ["one"]
        for number in range(250):  # in pages
            guest.note(str(number))
        assert await _messages(rig, sandbox.id) == ["one", *map(str, range(250))]
        assert await _messages(rig, sandbox.id) == ["one", *map(str, range(250))]


async def test_entries_that_the_guest_dropped_are_told_of(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        guest = await _guest(rig, sandbox.id)
        guest.note("one")
        await rig.node.telemetry.logs(sandbox.id)
        for _ in range(5):
            guest.note("dropped")
        guest.memory["journal"].clear()
        guest.note("two")
        assert await _messages(rig, sandbox.id) == ["one", "two"]
        (missing,) = await _messages(rig, sandbox.id, "envd")
        assert missing.startswith("5 entries are missing")


async def test_a_sampler_collects_by_itself_and_a_pause_collects_what_is_left(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval=QUICK) as rig:
        sandbox = await rig.create()
        (await _guest(rig, sandbox.id)).note("sampled")
        file = rig.settings.logs_dir / f"{sandbox.id}.jsonl"

        async def is_written() -> bool:
            return file.exists() and "sampled" in await asyncio.to_thread(file.read_text)

        await eventually(is_written)
    async with running(tmp_path / "other") as rig:
        sandbox = await rig.create()
        (await _guest(rig, sandbox.id)).note("at the end")
        await rig.node.sandboxes.pause(sandbox.id)
        assert await _messages(rig, sandbox.id) == ["at the end"]


async def test_a_guest_that_does_not_answer_holds_no_pause_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LAST_LOOK_SECONDS", 0.1)
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        guest = await _guest(rig, sandbox.id)
        guest.responsive.clear()
        telemetry = rig.node.telemetry
        asked = asyncio.create_task(telemetry.logs(sandbox.id))
        async with asyncio.timeout(1):
            await telemetry.last_look(sandbox.id)
            assert [entry.logger for entry in await asked] == ["sandbox"]
        guest.responsive.set()


async def test_logs_survive_a_restart_and_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        (await _guest(rig, sandbox.id)).note("before")
        assert await _messages(rig, sandbox.id) == ["before"]
        gone = await rig.create()
        await rig.node.sandboxes.kill(gone.id)
        orphan = rig.settings.logs_dir / "inobody.jsonl"
        await asyncio.to_thread(orphan.write_text, "")
    async with running(tmp_path) as rig:
        assert not orphan.exists()
        assert await _messages(rig, sandbox.id) == ["before"]
        await rig.node.sandboxes.connect(sandbox.id, 60)
        (await _guest(rig, sandbox.id)).note("after")
        assert await _messages(rig, sandbox.id) == ["before", "after"]
        assert await _events(rig, sandbox.id) == ["create", "pause", "resume"]


async def test_a_reboot_begins_a_new_journal(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        for _ in range(5):
            (await _guest(rig, sandbox.id)).note("before")
        await rig.node.sandboxes.pause(sandbox.id, memory=False)
        await rig.node.sandboxes.connect(sandbox.id, 60)
        (await _guest(rig, sandbox.id)).note("after")
        assert await _messages(rig, sandbox.id) == ["before"] * 5 + ["after"]


async def test_what_is_done_to_a_sandbox_is_in_its_log(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandboxes = rig.node.sandboxes
        sandbox = await rig.create()
        (await _guest(rig, sandbox.id)).note("the parent's")
        snapshot = await sandboxes.snapshot(sandbox.id)
        (child,) = await sandboxes.fork(sandbox.id, 1)
        assert not isinstance(child, BaseException)
        await sandboxes.pause(sandbox.id)
        await sandboxes.connect(sandbox.id, 60)
        assert await _events(rig, sandbox.id) == ["create", "snapshot", "fork", "pause", "resume"]
        assert await _events(rig, child.id) == ["create", "forked"]
        assert await _messages(rig, child.id) == []
        other = await rig.create(template=snapshot.id)
        assert await _messages(rig, other.id) == []


async def test_a_killed_or_lost_sandbox_leaves_no_log(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        killed, lost = await rig.create(), await rig.create()
        for each in (killed, lost):
            (await _guest(rig, each.id)).note("something")
            assert await _messages(rig, each.id) == ["something"]
        (await rig.instance(lost.id)).die("crashed")
        await rig.node.sandboxes.kill(killed.id)

        async def nothing_is_left() -> bool:
            return not list(rig.settings.logs_dir.iterdir())

        await eventually(nothing_is_left)
        assert await rig.node.telemetry.logs(killed.id) == []


async def test_a_log_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        sandbox = await rig.create()
        await rig.node.telemetry.close()
        file = rig.settings.logs_dir / f"{sandbox.id}.jsonl"
        await asyncio.to_thread(file.unlink)
        await asyncio.to_thread(file.mkdir)
        await rig.node.sandboxes.pause(sandbox.id)
        await rig.node.sandboxes.connect(sandbox.id, 60)
        await rig.node.telemetry.close()
        await asyncio.to_thread(file.rmdir)
        assert [
            entry for entry in await rig.node.telemetry.logs(sandbox.id) if isinstance(entry, LogEntry)
        ] == []
