"""The store of uploaded archives, links to it, and logs of builds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.errors import InvalidRequest
from aenv.templates.build_log import MOST_BYTES, MOST_LINE, BuildLogs, at_least
from aenv.templates.uploads import Uploads

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return [path.name for path in folder.iterdir()]


async def content(*pieces: bytes, then: BaseException | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if then is not None:
        raise then


@pytest.fixture
async def uploads(tmp_path: Path) -> Uploads:
    found = Uploads(tmp_path, most_bytes=3 << 20, most_each=2 << 20)
    await asyncio.to_thread((tmp_path / "old.part").write_bytes, b"cut off")
    await found.start()
    assert not names(tmp_path)
    return found


async def test_an_upload_is_kept_and_replaced(uploads: Uploads, tmp_path: Path) -> None:
    assert not await uploads.has(A)
    for data in (b"one", b"two"):
        await uploads.put(A, content(data[:1], data[1:]))
        assert await uploads.has(A)
        with uploads.using(A) as path:
            assert path.read_bytes() == data
    await uploads.discard(A)
    assert not await uploads.has(A)
    assert not names(tmp_path)


async def test_what_is_cut_off_leaves_nothing(uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cut"):
        await uploads.put(A, content(b"x", then=ValueError("cut")))
    with pytest.raises(InvalidRequest, match="2 MiB"):
        await uploads.put(A, content(bytes(2 << 20), b"x"))
    task = asyncio.ensure_future(uploads.put(A, forever()))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert not names(tmp_path)


async def forever() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.Event().wait()


async def test_the_coldest_go_but_for_those_in_use(uploads: Uploads, tmp_path: Path) -> None:
    await uploads.put(A, content(os.urandom(1 << 20)))
    await uploads.put(B, content(os.urandom(1 << 20)))
    os.utime(tmp_path / f"{A}.tar", (1, 1))
    os.utime(tmp_path / f"{B}.tar", (2, 2))
    with uploads.using(A):
        await uploads.put(C, content(os.urandom((1 << 20) + 4096)))
    assert [await uploads.has(each) for each in (A, B, C)] == [True, False, True]


async def test_a_log_is_live_and_kept(tmp_path: Path) -> None:
    logs = BuildLogs(tmp_path / "logs")
    assert not await logs.read("b")
    async with logs.open("b") as log:
        log.say("two\nlines", step="base")
        log.output("[1/1] [stdout]", ["\x1b[31mred\x1b[0m\t\x07", "x" * 2 * MOST_LINE, "\udc80"], step="1")
        log.say("bad", level="error")
        live = await logs.read("b")
        assert [entry.message for entry in live[:3]] == ["two", "lines", "[1/1] [stdout]: red\t"]
        assert len(live[3].message) == MOST_LINE + 1
        assert live[4].message.endswith(": ?")
        assert [entry.step for entry in live] == ["base", "base", "1", "1", "1", None]
    assert await BuildLogs(tmp_path / "logs").read("b") == live
    assert at_least(live, None) == at_least(live, "debug") == live
    assert [entry.message for entry in at_least(live, "warn")] == ["bad"]
    await logs.forget_others({"c"})
    assert not await logs.read("b")


async def test_a_log_is_bounded_and_no_entry_moves(tmp_path: Path) -> None:
    logs = BuildLogs(tmp_path)
    async with logs.open("b") as log:
        for _ in range(MOST_BYTES // 4096):
            log.output("p", ["x" * 4096], step="1")
        log.output("p", ["left out"] * 1000, step="1")
        log.say("the end", level="error")
        messages = [entry.message for entry in log.entries]
    assert messages[-2:] == ["the log is too long: further output is left out", "the end"]
    assert (tmp_path / "b.jsonl").stat().st_size < 2 * MOST_BYTES


async def test_writes_that_meet_or_are_cut_off_write_each_line_once(tmp_path: Path) -> None:
    logs = BuildLogs(tmp_path)
    async with logs.open("b") as log:
        for number in range(20):
            log.say(f"{number}")
            writes = [asyncio.ensure_future(log.write()) for _ in range(3)]
            await asyncio.sleep(0)
            writes[0].cancel()
            await asyncio.wait(writes)
    assert [entry.message for entry in await logs.read("b")] == [f"{number}" for number in range(20)]


async def test_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    logs = BuildLogs(tmp_path)
    async with logs.open("b") as log:
        log.say("whole")
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "lev')
    assert [entry.message for entry in await logs.read("b")] == ["whole"]


async def test_a_log_that_cannot_be_written_is_still_live(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    logs = BuildLogs(tmp_path / "logs")
    async with logs.open("b") as log:
        log.say("here")
        await log.write()
        assert [entry.message for entry in await logs.read("b")] == ["here"]
