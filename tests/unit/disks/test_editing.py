"""Disks are changed offline, and nothing of it stays behind: no process, no mount, no loop device."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aenv.disks.editing import edit_new_disk, edit_overlay
from aenv.disks.edits import Edit
from aenv.disks.merge import merge
from aenv.errors import HostNotReady, InvalidRequest, NoSpace, RuntimeFailure
from aenv.images.commands import run
from tests.server import ROOT
from tests.small_disk import small_disk

SIZE = 64
FUNCTIONS = "tests.unit.disks.edit_functions"


def edit(function: str, **arguments: str | int) -> Edit:
    return Edit(f"{FUNCTIONS}:{function}", arguments)


@dataclass
class Disks:
    """A folder with disks, each of which stands on those before."""

    folder: Path
    made: list[Path] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)

    async def apply(self, *edits: Edit, size: int = SIZE) -> list[str]:
        """One more disk; what the edits said."""
        lines: list[str] = []
        target = self.folder / f"disk-{next(self.names)}"
        if self.made:
            await edit_overlay(target, self.made, size, edits, lines.append)
        else:
            await edit_new_disk(target, size, edits, lines.append)
        self.made.append(target)
        return lines

    def digests(self) -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.made]

    def processes(self) -> list[int]:
        """Those that have the folder in their command lines, this one not."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.folder) in (entry / "cmdline").read_text() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found

    def is_clean(self) -> bool:
        """Nothing is left but the disks."""
        loops = [
            str(path) for path in Path("/sys/block").glob("loop*/loop/backing_file") if _uses(path, self)
        ]
        return not (self.processes() or loops or str(self.folder) in Path("/proc/mounts").read_text())


def _uses(backing: Path, disks: Disks) -> bool:
    with contextlib.suppress(OSError):
        name = backing.read_text().strip()
        return str(disks.folder) in name or name in ("/disk", "/sys/disk")
    return False


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture
async def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disks]:
    """An empty folder; checked for leaks at the end."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    disks = Disks(tmp_path)
    yield disks
    await until(disks.is_clean)


async def test_each_disk_has_what_those_below_have(disks: Disks) -> None:
    assert await disks.apply(edit("write", path="/a", text="one")) == ["wrote /a"]
    await disks.apply(edit("write", path="/b", text="two"), edit("write", path="/a", text="three"))
    before = disks.digests()
    assert await disks.apply(edit("show", path="/a"), edit("show", path="/b")) == ["three", "two"]
    assert disks.digests()[:2] == before
    assert disks.made[0].stat().st_blocks * 512 < 8 << 20  # not much more than what is in it


async def test_what_is_written_side_by_side_is_whole(disks: Disks) -> None:
    """The daemon mixes writes up if it gets another before it is done with one."""
    await disks.apply()
    much = {"files": 12, "kib": 2048}
    lines = await disks.apply(edit("write_all_at_once", **much), edit("check_all", **much))
    lines += await disks.apply(edit("check_all", **much))
    assert lines == ["written", "checked", "checked"]


async def test_a_disk_is_left_whole(disks: Disks) -> None:
    await disks.apply(edit("write", path="/a", text="one"))
    await run(["e2fsck", "-fn", disks.made[0]])


async def test_files_of_the_host_can_be_given(disks: Disks) -> None:
    (disks.folder / "given").write_text("hello")
    given = Edit(f"{FUNCTIONS}:copy", {"path": "/copied"}, {"file": disks.folder / "given"})
    assert await disks.apply(given, edit("show", path="/copied")) == ["copying", "hello"]


async def test_names_lead_nowhere_else(disks: Disks) -> None:
    lines = await disks.apply(edit("show", path="/../../etc/passwd"), edit("show", path="/proc/self"))
    assert lines == ["missing", "missing"]


async def test_a_disk_grows_and_its_overlays_can_be_merged(disks: Disks) -> None:
    await disks.apply(edit("write", path="/a", text="one"))
    await disks.apply(edit("write", path="/b", text="two"))
    await disks.apply(edit("write", path="/c", text="three"), size=4 * SIZE)
    lines = await disks.apply(edit("look"), size=4 * SIZE)
    assert int(lines[0]) > 3 * SIZE
    assert lines[1] == "a b c lost+found"
    merge(disks.made[1:], disks.folder / "merged")
    disks.made[1:] = [disks.folder / "merged"]
    assert (await disks.apply(edit("look"), size=4 * SIZE)) == lines


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("refuse", InvalidRequest, "^no, thank you$"),
        ("break_down", RuntimeFailure, "ZeroDivisionError: a bug"),
        ("die", RuntimeFailure, "killed"),
    ],
)
@pytest.mark.parametrize("below", [0, 1])
async def test_a_failure_says_what_it_is(
    disks: Disks, function: str, error: type[Exception], message: str, below: int
) -> None:
    for _ in range(below):
        await disks.apply()
    with pytest.raises(error, match=message):
        await disks.apply(edit("write", path="/a", text="one"), edit(function))
    assert disks.is_clean()


@pytest.mark.parametrize("below", [0, 1])
async def test_what_is_too_much_for_the_disk_is_refused(disks: Disks, below: int) -> None:
    for _ in range(below):
        await disks.apply()
    with pytest.raises(InvalidRequest, match=f"doesn't fit a disk of {SIZE} MiB"):
        await disks.apply(edit("fill", mib=2 * SIZE))


@pytest.mark.parametrize("below", [0, 1])
async def test_a_full_host_is_told_apart(disks: Disks, below: int) -> None:
    with small_disk(disks.folder / "small", 12) as folder:
        small = Disks(folder)
        for _ in range(below):
            await small.apply()
        with pytest.raises(NoSpace, match="host's disk is full"):
            await small.apply(edit("fill", mib=40))
    assert disks.is_clean()


def listening(heard: asyncio.Event) -> Callable[[str], None]:
    """Sets the event when an edit hangs."""

    def say(line: str) -> None:
        if line == "hanging":
            heard.set()

    return say


@pytest.mark.parametrize("below", [0, 1])
async def test_cancellation_ends_everything(disks: Disks, below: int) -> None:
    for _ in range(below):
        await disks.apply()
    heard = asyncio.Event()
    target = disks.folder / "target"
    work = (
        edit_overlay(target, disks.made, SIZE, [edit("hang")], listening(heard))
        if below
        else edit_new_disk(target, SIZE, [edit("hang")], listening(heard))
    )
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(heard.wait(), 30)
    assert not disks.is_clean()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not disks.processes()
    await until(disks.is_clean)


async def test_a_disk_that_was_never_unmounted_is_mended_before_it_grows(disks: Disks) -> None:
    await disks.apply()
    much = {"files": 2, "kib": 256}
    heard = asyncio.Event()
    target = disks.folder / "torn"
    edits = [edit("write_all_at_once", **much), edit("hang")]
    work = edit_overlay(target, disks.made, SIZE, edits, listening(heard))
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(heard.wait(), 30)
    (daemon,) = (pid for pid in disks.processes() if _name(pid) == "qemu-storage-da")
    os.kill(daemon, signal.SIGTERM)  # it writes its tables, as a capture does
    await asyncio.to_thread(_wait_for_end, daemon)
    task.cancel()
    await asyncio.wait([task])
    disks.made.append(target)
    assert await disks.apply(edit("check_all", **much), size=4 * SIZE) == ["checked"]


async def test_a_daemon_that_dies_is_a_failure(disks: Disks) -> None:
    await disks.apply()

    def say(line: str) -> None:
        if line == "hanging":
            (daemon,) = (pid for pid in disks.processes() if _name(pid) == "qemu-storage-da")
            os.kill(daemon, signal.SIGKILL)

    slow = [edit("hang_shortly"), edit("fill", mib=16)]
    with pytest.raises(RuntimeFailure):
        await edit_overlay(disks.folder / "target", disks.made, SIZE, slow, say)


def _wait_for_end(pid: int) -> None:
    """Of a process that another one is to reap."""
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


SERVER = f"""
import asyncio, sys
from pathlib import Path
from aenv.disks.editing import edit_overlay
from aenv.disks.edits import Edit
target, base = map(Path, sys.argv[1:])
edits = [Edit("{FUNCTIONS}:fill", {{"mib": 8}}), Edit("{FUNCTIONS}:hang")]
asyncio.run(edit_overlay(target, [base], {SIZE}, edits, lambda line: print(line, flush=True)))
"""


async def test_nothing_outlives_a_server_that_is_killed(disks: Disks) -> None:
    await disks.apply()
    command = [sys.executable, "-c", SERVER, str(disks.folder / "target"), str(disks.made[0])]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    while await server.stdout.readline() != b"hanging\n":
        pass
    assert len(disks.processes()) > 2
    server.kill()
    await server.wait()
    await until(disks.is_clean)


HIDE = """
import subprocess, sys
if "aenv.disks.editor" in sys.orig_argv:
    subprocess.run(["mount", "--bind", "/dev/null", "{path}"], check=True)
"""


@pytest.mark.parametrize("path", ["/dev/loop-control", "/dev/fuse"])
async def test_a_missing_device_is_named(
    disks: Disks, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await disks.apply()
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(path=path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    with pytest.raises(HostNotReady, match="modprobe"):
        await disks.apply(edit("look"))
