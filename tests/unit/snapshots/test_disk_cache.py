"""Cached disks: made once, found again, kept while they are used, forgotten when they take too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aenv.database import Database
from aenv.errors import HostNotReady, NoSpace, StorageFailure
from aenv.runtimes.base import Capture, Layer, Resources, RuntimeIdentity
from aenv.snapshots.captures import Captures
from aenv.snapshots.disk_cache import DiskCache, key_over

PIECE = 1 << 20
IDENTITY = RuntimeIdentity("fake", "1", "none", "none")


@dataclass
class Rig:
    """A cache that may take three disks of one `PIECE` each, and a little more."""

    home: Path
    database: Database
    captures: Captures
    cache: DiskCache
    made: list[str]

    async def obtain(self, name: str, parent: Capture | None = None, size: int = PIECE) -> Capture:
        """The disk `name`: a layer of its own over those of `parent`."""
        return await self.cache.obtain(name, self.maker(name, parent, size))

    def maker(
        self, name: str, parent: Capture | None = None, size: int = PIECE
    ) -> Callable[[Path], Awaitable[Capture]]:
        """What makes it, noted in `made`."""

        async def make(folder: Path) -> Capture:
            self.made.append(name)
            (folder / "disk").write_bytes(name.encode().ljust(size, b"x"))
            below = () if parent is None else parent.layers
            layers = (*below, Layer("disk", folder / "disk"))
            return Capture(IDENTITY, Resources(1, 128, 1024), layers, memory=False)

        return make

    def files(self) -> list[bytes]:
        """How each layer on the disk begins: the name of the disk that it is from."""
        return sorted(path.read_bytes().rstrip(b"x") for path in self.home.glob("captures/*/*"))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    database = await Database.open(tmp_path / "aenv.db")
    captures = Captures(database, tmp_path, tmp_path / "captures")
    captures._folder.mkdir()
    yield Rig(tmp_path, database, captures, DiskCache(database, captures, tmp_path, PIECE * 7 // 2), [])
    await database.close()


async def test_a_disk_is_made_once(rig: Rig) -> None:
    first = await rig.obtain("a")
    again, missing = await rig.obtain("a"), await rig.cache.get("b")
    assert (rig.made, missing) == (["a"], None)
    assert [layer.path for layer in again.layers] == [layer.path for layer in first.layers]
    await rig.captures.sweep()
    assert rig.files() == [b"a"]


async def test_many_who_want_the_same_wait_for_one(rig: Rig) -> None:
    paths = {each.layers[0].path for each in await asyncio.gather(*(rig.obtain("a") for _ in range(8)))}
    assert (rig.made, len(paths)) == (["a"], 1)


async def test_the_next_one_tries_what_failed_or_was_cancelled(rig: Rig) -> None:
    begun = asyncio.Event()

    async def fail(folder: Path) -> Capture:
        (folder / "disk").write_bytes(b"half")
        begun.set()
        await asyncio.sleep(0.01)
        raise HostNotReady("no such tool")

    async def hang(folder: Path) -> Capture:
        begun.set()
        await asyncio.sleep(3600)
        raise AssertionError(folder)

    for make in (fail, hang):
        begun.clear()
        first = asyncio.create_task(rig.cache.obtain("a", make))
        await begun.wait()
        second = asyncio.create_task(rig.obtain(make.__name__))
        third = asyncio.create_task(rig.obtain("a"))
        if make is hang:
            first.cancel()
        with pytest.raises((HostNotReady, asyncio.CancelledError)):
            await first
        await asyncio.gather(second, third)
        assert rig.files() == sorted({name.encode() for name in rig.made})
        await rig.database.run(lambda c: c.execute("DELETE FROM cached_disks WHERE key = 'a'"))
        await rig.captures.collect()


async def test_the_coldest_go_first(rig: Rig) -> None:
    for name in "abc":
        await rig.obtain(name)
    await rig.cache.get("a")
    await rig.obtain("d")
    assert rig.files() == [b"a", b"c", b"d"]
    await rig.obtain("b")
    assert rig.made == ["a", "b", "c", "d", "b"]


async def test_what_is_kept_stays(rig: Rig) -> None:
    with rig.cache.kept("a"):
        for name in "abcdef":
            await rig.obtain(name)
        assert rig.files() == [b"a", b"e", b"f"]
    await rig.obtain("g")
    assert rig.files() == [b"e", b"f", b"g"]


async def test_a_layer_that_another_disk_needs_stays(rig: Rig) -> None:
    low = await rig.obtain("low")
    top = await rig.obtain("top", low)
    await rig.cache.get("top")
    await rig.obtain("c")
    with rig.cache.kept("top"):
        await rig.obtain("d")
        assert rig.files() == [b"d", b"low", b"top"]
    assert all(layer.path.exists() for layer in top.layers)


async def test_a_full_disk_takes_what_nobody_keeps(rig: Rig) -> None:
    await rig.obtain("a")
    await rig.obtain("b")
    attempts = 0

    async def make(folder: Path) -> Capture:
        nonlocal attempts
        attempts += 1
        (folder / "half").write_bytes(b"half")
        if attempts == 1:
            raise NoSpace("full")
        (folder / "half").unlink()
        return await rig.maker("c")(folder)

    with rig.cache.kept("b"):
        await rig.cache.obtain("c", make)
    assert (attempts, rig.files()) == (2, [b"b", b"c"])
    await rig.cache.give_up()
    assert rig.files() == []


async def test_what_another_stands_on_is_forgotten_after_it(rig: Rig) -> None:
    low = await rig.obtain("low")
    await rig.obtain("b")
    await rig.obtain("top", low)
    await rig.obtain("c")
    assert rig.files() == [b"c", b"low", b"top"]
    assert await rig.cache.get("low") is not None
    await rig.cache.get("c")
    await rig.obtain("d", size=2 * PIECE)
    assert rig.files() == [b"c", b"d"]


async def test_layers_that_a_template_names_are_not_counted(rig: Rig) -> None:
    big = await rig.obtain("big", size=3 * PIECE)
    await rig.database.run(lambda c: rig.captures.insert(c, "of-a-template", big))
    with rig.captures.kept("of-a-template"):
        for name in "abc":
            await rig.obtain(name)
        assert rig.files() == [b"a", b"b", b"big", b"c"]


async def test_a_damaged_disk_is_made_again(rig: Rig) -> None:
    capture = await rig.obtain("a")
    capture.layers[0].path.write_bytes(b"short")
    assert await rig.cache.get("a") is None
    await rig.obtain("a")
    await rig.captures.collect()
    assert (rig.made, rig.files()) == (["a", "a"], [b"a"])


async def test_a_disk_that_is_not_recorded_leaves_nothing(rig: Rig) -> None:
    def query_only(yes: bool) -> None:
        rig.database._connection.execute(f"PRAGMA query_only = {int(yes)}")

    make = rig.maker("a")

    async def make_and_break(folder: Path) -> Capture:
        capture = await make(folder)
        await asyncio.get_running_loop().run_in_executor(rig.database._thread, query_only, True)
        return capture

    with pytest.raises(StorageFailure):
        await rig.cache.obtain("a", make_and_break)
    assert rig.files() == []
    await asyncio.get_running_loop().run_in_executor(rig.database._thread, query_only, False)
    await rig.obtain("a")
    assert rig.files() == [b"a"]


def test_keys_tell_everything_apart() -> None:
    keys = [
        key_over(""),
        key_over("", ""),
        key_over("", "ab"),
        key_over("", "a", "b"),
        key_over("a", "b"),
        key_over("ab"),
        key_over("", "\udcff"),
    ]
    assert len(set(keys)) == len(keys)
