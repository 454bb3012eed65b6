"""Which disks are made of an image, in which order, and which are found: on the fake runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aenv.database import Database
from aenv.errors import ImageUnusable, InvalidRequest, NoSpace, RuntimeFailure
from aenv.images.convert import ConvertedImage, Converter
from aenv.images.models import LayerBlob
from aenv.runtimes.base import Capture
from aenv.runtimes.fake import FakeRuntime
from aenv.snapshots.captures import Captures
from aenv.snapshots.disk_cache import DiskCache

DISK_MIB = 1024


@dataclass
class Listed:
    """An image of named layers, of which those that were asked for are noted."""

    names: Sequence[str]
    reference: str = "an/image"
    asked: list[str] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def diff_ids(self) -> Sequence[str]:
        return [f"sha256:{name}" for name in self.names]

    def begin(self, start: int = 0) -> None:
        self.begun.append(start)

    async def layer(self, index: int) -> LayerBlob:
        name = self.names[index]
        self.asked.append(name)
        self.wanted.set()
        return LayerBlob(f"sha256:blob-{name}", f"sha256:{name}", 1, "gzip", Path(f"/{name}"))


@dataclass
class Rig:
    home: Path
    runtime: FakeRuntime
    disks: DiskCache
    converter: Converter
    lines: list[str] = field(default_factory=list)

    async def convert(self, image: Listed, disk_mib: int | None = None) -> ConvertedImage:
        with ExitStack() as keep:
            return await self.converter.convert(image, keep, disk_mib=disk_mib, say=self.lines.append)

    def folders(self) -> int:
        return len(list((self.home / "captures").iterdir()))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    (tmp_path / "captures").mkdir()
    database = await Database.open(tmp_path / "aenv.db")
    captures = Captures(database, tmp_path, tmp_path / "captures")
    disks = DiskCache(database, captures, tmp_path, 1 << 30)
    runtime = FakeRuntime()
    yield Rig(tmp_path, runtime, disks, Converter(runtime, disks, DISK_MIB))
    await database.close()


def _edits(capture: Capture) -> list[str]:
    """What was done to a disk, layers by their names."""
    done = json.loads(capture.layers[-1].path.read_text())["edits"]
    names = []
    for function, arguments in done:
        diff_id = arguments.get("diff_id")
        names.append(function.partition(":")[2] if diff_id is None else diff_id.removeprefix("sha256:"))
    return names


async def test_layers_are_applied_in_order_and_provisioned(rig: Rig) -> None:
    image = Listed(["a", "b", "c"])
    made = await rig.convert(image)
    assert _edits(made.capture) == ["a", "b", "c", "provision"]
    assert (image.asked, image.begun) == (["a", "b", "c"], [0])
    assert any("layer 2 of 3 (sha256:blob-b)" in line for line in rig.lines)
    assert made.capture.resources.disk_mib == DISK_MIB


async def test_only_layers_without_disks_are_fetched(rig: Rig) -> None:
    first = await rig.convert(Listed(["a", "b", "c"]))
    same, other, longer = Listed(["a", "b", "c"]), Listed(["a", "b", "x"]), Listed(["a", "b", "c", "d"])
    assert (await rig.convert(same)).key == first.key
    assert (same.asked, same.begun) == ([], [])
    assert _edits((await rig.convert(other)).capture) == ["a", "b", "x", "provision"]
    assert (other.asked, other.begun) == (["x"], [2])
    await rig.convert(longer)
    assert (longer.asked, longer.begun) == (["d"], [3])
    swapped = Listed(["b", "a", "c"])
    await rig.convert(swapped)
    assert swapped.asked == ["b", "a", "c"]


async def test_many_layers_are_few_disks(rig: Rig) -> None:
    names = [f"n{number}" for number in range(128)]
    made = await rig.convert(Listed(names))
    assert _edits(made.capture) == [*names, "provision"]
    assert rig.folders() == 16 + 14 + 1
    image = Listed(names[:127])
    await rig.convert(image)
    assert image.asked == names[120:127]


async def test_disks_grow_and_do_not_shrink(rig: Rig) -> None:
    small = await rig.convert(Listed(["a"]))
    large = await rig.convert(Listed(["a"]), 2 * DISK_MIB)
    assert (small.capture.resources.disk_mib, large.capture.resources.disk_mib) == (DISK_MIB, 2 * DISK_MIB)
    assert small.key != large.key
    with pytest.raises(InvalidRequest, match="1023 is too little"):
        await rig.convert(Listed(["a"]), DISK_MIB - 1)
    folder = rig.home / "new"
    folder.mkdir()
    with pytest.raises(InvalidRequest, match="can't shrink to 1024 MiB"):
        await rig.runtime.edit_disk(large.capture, folder, [], disk_mib=DISK_MIB, say=rig.lines.append)


async def test_what_was_finished_before_a_failure_stays(rig: Rig) -> None:
    rig.runtime.order_failure("edit", InvalidRequest("layer 1 of 2: no good"))
    with pytest.raises(ImageUnusable, match="an/image: layer 1 of 2: no good"):
        await rig.convert(Listed(["a", "b"]))
    assert rig.folders() == 0
    await rig.convert(Listed(["a"]))
    rig.runtime.order_failure("edit", RuntimeFailure("the daemon died"))
    image = Listed(["a", "b"])
    with pytest.raises(RuntimeFailure, match="the daemon died"):
        await rig.convert(image)
    assert (image.asked, rig.folders()) == (["b"], 2)


async def test_a_full_disk_is_tried_again_with_more_room(rig: Rig) -> None:
    await rig.convert(Listed(["old"]))
    rig.runtime.order_failure("edit", NoSpace("full"))
    made = await rig.convert(Listed(["a"]))
    assert _edits(made.capture) == ["a", "provision"]
    assert rig.folders() == 2


async def test_who_wants_the_same_waits_and_a_cancelled_one_is_replaced(rig: Rig) -> None:
    with rig.runtime.hold("edit"):
        images = [Listed(["a", "b"]) for _ in range(3)]
        tasks = [asyncio.create_task(rig.convert(image)) for image in images]
        await images[0].wanted.wait()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    keys = {(await task).key for task in tasks[1:]}
    assert len(keys) == 1
    assert sorted(name for image in images for name in image.asked) == ["a", "a", "b"]
    assert rig.folders() == 3
