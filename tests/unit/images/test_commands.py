"""Host commands: output, failures that say why, and nothing that outlives a cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.errors import HostNotReady
from aenv.images.commands import run
from aenv.images.locks import exclusive
from aenv.images.requirements import TOOLS, missing, require


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.01)


def read(path: Path) -> str:
    return path.read_text().strip()


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_output_is_returned_and_messages_are_followed() -> None:
    lines: list[str] = []
    text = await run(["sh", "-c", "echo out; echo one >&2; echo two >&2"], on_line=lines.append)
    assert text == "out\n"
    assert lines == ["one", "two"]


async def test_a_failure_tells_the_status_and_the_last_lines() -> None:
    with pytest.raises(HostNotReady, match=r"sh failed with exit status 3:\nwhy"):
        await run(["sh", "-c", "echo why >&2; exit 3"])


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(HostNotReady, match="no-such-command could not be started"):
        await run(["no-such-command"])


async def test_cancellation_ends_the_whole_group(tmp_path: Path) -> None:
    child = tmp_path / "child"
    task = asyncio.create_task(run(["sh", "-c", f"sleep 100 & echo $! > {child}; wait"]))
    await until(lambda: child.exists() and child.read_text().endswith("\n"))
    process = Path("/proc") / read(child)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not process.exists())


KILLED = """
import asyncio, sys
from aenv.images.commands import run
script = "mount -t tmpfs none $1 && touch $1/inside && sleep 100 & readlink /proc/self/ns/pid > $0; wait"
asyncio.run(run(["sh", "-c", script, *sys.argv[1:]], confined=True))
"""


def members(pid_namespace: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((process / "ns/pid").readlink()) == pid_namespace:
                found.append(process.name)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
async def test_a_confined_command_ends_when_its_caller_is_killed_and_its_mounts_never_show(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    place = tmp_path / "place"
    await asyncio.to_thread(place.mkdir)
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, told, place)
    try:
        await until(lambda: told.exists() and told.read_text().endswith("\n"))
        await until(lambda: len(members(read(told))) >= 2)
        assert read(Path("/proc/self/mounts")).count(str(place)) == 0
    finally:
        caller.kill()
        await caller.wait()
    await until(lambda: not members(read(told)))
    assert list_names(place) == []


async def test_a_lock_is_held_by_one_at_a_time_and_freed(tmp_path: Path) -> None:
    descriptors = open_descriptors()
    inside = 0
    most = 0

    async def work() -> None:
        nonlocal inside, most
        async with exclusive(tmp_path / "lock"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(work(), work(), work())
    assert most == 1
    assert open_descriptors() == descriptors


def test_missing_tools_are_reported_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("aenv.images.requirements._ADMIN_FOLDERS", ())
    assert {item.tool for item in missing()} >= {"qemu-system-x86_64", "nft"}
    with pytest.raises(HostNotReady, match="apt-get install nftables iproute2"):
        require("nft", "ip")
    with pytest.raises(HostNotReady, match="zstd is missing: apt-get install zstd"):
        require("zstd")


def test_every_needed_tool_of_this_machine_is_found_without_the_administration_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = missing()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert missing() == before
    assert TOOLS["mke2fs"] == "e2fsprogs"
