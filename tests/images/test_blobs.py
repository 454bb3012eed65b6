"""The store of blobs: what it keeps, what it removes, and what it does when the disk is full."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.errors import ImageUnusable, NoSpace, StorageFailure
from aenv.images.blobs import BlobLease, BlobStore
from aenv.images.download import Blob, Content, Pieces, digest_of
from aenv.images.partial import WrongContent
from aenv.images.retries import Interrupted
from tests.images.conftest import QUICK
from tests.small_disk import resize, small_disk

KIB = 1 << 10


def made(size: int, *, opened: list[int] | None = None) -> tuple[Blob, Content]:
    """A blob of random bytes and what opens it; the offsets at which it was opened go to `opened`."""
    data = os.urandom(size)

    @asynccontextmanager
    async def content(offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        if opened is not None:
            opened.append(offset)
        yield offset, one(data[offset:])

    return Blob(digest_of(data), size), content


async def one(data: bytes) -> Pieces:
    yield data


async def get(store: BlobStore, blob: Blob, content: Content) -> Path:
    """A blob that is held no longer than it takes to get it."""
    async with store.lease() as lease:
        return await lease.get(blob, content)


def set_used(store: BlobStore, blob: Blob, seconds: int) -> None:
    """When it was used last."""
    os.utime(store.path(blob.digest), (seconds, seconds))


async def small_store(folder: Path, size: int) -> BlobStore:
    store = BlobStore(folder, max_bytes=size, patience=QUICK)
    await store.open()
    return store


async def test_what_is_here_is_not_fetched_again(blobs: BlobStore) -> None:
    opened: list[int] = []
    blob, content = made(1000, opened=opened)
    first, second = await get(blobs, blob, content), await get(blobs, blob, content)
    assert first == second
    assert digest_of(first.read_bytes()) == blob.digest
    assert opened == [0]


async def test_an_empty_blob(blobs: BlobStore) -> None:
    blob, content = made(0)
    assert (await get(blobs, blob, content)).read_bytes() == b""


async def test_sha512(blobs: BlobStore) -> None:
    data = b"some"

    @asynccontextmanager
    async def content(_offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        yield 0, one(data)

    blob = Blob(digest_of(data, "sha512"), len(data))
    assert (await get(blobs, blob, content)).read_bytes() == data
    async with blobs.lease() as lease:
        assert await lease.document(blob.digest) == data


async def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 250 * KIB)
    made_blobs = [made(100 * KIB) for _ in range(3)]
    for number, (blob, content) in enumerate(made_blobs[:2]):
        await get(store, blob, content)
        set_used(store, blob, 2000 - number)
    await get(store, *made_blobs[2])
    assert [store.path(blob.digest).exists() for blob, _ in made_blobs] == [True, False, True]


async def test_to_be_used_counts_as_used(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 250 * KIB)
    made_blobs = [made(100 * KIB) for _ in range(3)]
    for number, (blob, content) in enumerate(made_blobs[:2]):
        await get(store, blob, content)
        set_used(store, blob, 1000 + number)
    await get(store, *made_blobs[0])
    await get(store, *made_blobs[2])
    assert [store.path(blob.digest).exists() for blob, _ in made_blobs] == [True, False, True]


async def test_what_is_held_stays_until_it_is_not(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 150 * KIB)
    made_blobs = [made(100 * KIB) for _ in range(3)]
    async with store.lease() as lease, store.lease() as other:
        paths = [await lease.get(*each) for each in made_blobs]
        await other.get(*made_blobs[0])
        assert all(path.exists() for path in paths)
    assert [path.exists() for path in paths].count(True) == 1


async def test_a_blob_held_twice_stays_for_the_second(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 0)
    each = made(1000)
    async with store.lease() as lease:
        path = await lease.get(*each)
        async with store.lease() as other:
            await other.get(*each)
            await other.get(*each)
        assert path.exists()
    assert not path.exists()


async def test_partial_files_count_and_go_too(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 150 * KIB)
    left = tmp_path / "store" / "partial" / ("0" * 64)
    left.write_bytes(bytes(100 * KIB))
    os.utime(left, (1, 1))
    path = await get(store, *made(100 * KIB))
    assert path.exists()
    assert not left.exists()


async def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    store = await small_store(tmp_path / "store", 1 << 20)
    partial = tmp_path / "store" / "partial"
    (partial / ".tmp-left").write_bytes(b"x")
    (partial / ("0" * 64)).write_bytes(b"x")
    await store.open()
    assert [path.name for path in partial.iterdir()] == ["0" * 64]


async def test_what_has_no_digest_yet_is_stored_under_the_one_that_it_has(blobs: BlobStore) -> None:
    blob, content = made(3 << 20)
    async with blobs.lease() as lease:
        found, path = await lease.add(content)
        assert found == blob
        assert digest_of(path.read_bytes()) == blob.digest


async def test_what_breaks_off_and_cannot_go_on_leaves_nothing(blobs: BlobStore, tmp_path: Path) -> None:
    @asynccontextmanager
    async def content(_offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        yield 0, broken()

    async def broken() -> Pieces:
        yield b"some"
        raise ImageUnusable("the rest is gone")

    async with blobs.lease() as lease:
        with pytest.raises(ImageUnusable, match="the rest is gone"):
            await lease.add(content)
    assert not list((tmp_path / "blobs" / "partial").iterdir())
    assert not list((tmp_path / "blobs" / "sha256").iterdir())


async def test_a_document_that_was_damaged_on_the_disk_is_fetched_again(blobs: BlobStore) -> None:
    blob, content = made(1000)
    path = await get(blobs, blob, content)
    path.write_bytes(b"damaged")
    async with blobs.lease() as lease:
        assert digest_of(await lease.read(blob, content, 2000)) == blob.digest
        with pytest.raises(WrongContent, match="no more than 500"):
            await lease.read(blob, content, 500)


async def test_other_blobs_make_room_on_a_full_disk(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [made(100 * KIB) for _ in range(3)]
    for number, (blob, content) in enumerate(old):
        await get(blobs, blob, content)
        set_used(blobs, blob, 1000 + number)
    room = (64 << 20) + 150 * KIB

    def free(folder: Path) -> int:
        return (
            room - sum(path.stat().st_size for path in (folder / "sha256").iterdir()) + 300 * KIB - 100 * KIB
        )

    monkeypatch.setattr("aenv.images.blobs.free_bytes", free)
    await get(blobs, *made(150 * KIB))
    assert [blobs.path(blob.digest).exists() for blob, _ in old] == [False, True, True]


async def test_a_disk_that_fills_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aenv.images.blobs._MARGIN", 0)
    with small_disk(tmp_path / "disk", 16) as disk:
        store = await small_store(disk / "store", 1 << 30)
        blob, content = made(8 << 20)

        @asynccontextmanager
        async def shrinking(offset: int) -> AsyncIterator[tuple[int, Pieces]]:
            resize(disk, 4)
            async with content(offset) as opened:
                yield opened

        with pytest.raises(NoSpace, match="disk is full"):
            await get(store, blob, shrinking)
        assert not list((disk / "store" / "partial").iterdir())
        resize(disk, 16)
        await get(store, blob, content)


async def test_a_store_that_cannot_be_made_smaller_serves_all_the_same(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the disk is ill")

    monkeypatch.setattr(blobs, "_scan", fail)
    path = await get(blobs, *made(1000))
    await blobs.give_up()
    assert path.exists()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailure, match="preparing the store of layers"):
        await small_store(tmp_path / "file" / "store", 1)


async def test_a_cancelled_download_keeps_what_has_come(blobs: BlobStore, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    offsets: list[int] = []
    reached = asyncio.Event()

    @asynccontextmanager
    async def content(offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        offsets.append(offset)
        yield offset, slow(offset)

    async def slow(offset: int) -> Pieces:
        yield data[offset : 1 << 20]
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        yield data[max(offset, 1 << 20) :]

    blob = Blob(digest_of(data), len(data))
    task = asyncio.create_task(get(blobs, blob, content))
    await reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await get(blobs, blob, content)
    assert offsets == [0, 1 << 20]


async def test_random_histories_leave_the_store_consistent(tmp_path: Path) -> None:
    """Many pulls at once of a few blobs; some fail or are cancelled, and the store is too small."""
    store = await small_store(tmp_path / "store", 64 * KIB)
    kinds = [made(20 * KIB + number) for number in range(8)]

    def flaky(content: Content, number: int) -> Content:
        breaks = number % 5 == 0

        @asynccontextmanager
        async def opening(offset: int) -> AsyncIterator[tuple[int, Pieces]]:
            nonlocal breaks
            await asyncio.sleep(0.001 * (number % 5))
            if number % 7 == 0:
                raise ImageUnusable("not today")
            if breaks:
                breaks = False
                raise Interrupted("not now", retry_after=0)
            async with content(offset) as opened:
                yield opened

        return opening

    async def use(lease: BlobLease, number: int) -> None:
        blob, content = kinds[number % len(kinds)]
        path = await lease.get(blob, flaky(content, number))
        await asyncio.sleep(0.001)
        assert digest_of(await asyncio.to_thread(path.read_bytes)) == blob.digest

    async def pull(number: int) -> None:
        async with store.lease() as lease:
            await asyncio.gather(use(lease, number), use(lease, number * 3 + 1))

    tasks = [asyncio.create_task(pull(number)) for number in range(60)]
    await asyncio.sleep(0.02)
    for task in tasks[::4]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    expected = (ImageUnusable, asyncio.CancelledError, type(None))
    assert not [each for each in outcomes if not isinstance(each, expected)]
    assert outcomes.count(None) >= 30
    kept = list((tmp_path / "store" / "sha256").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 64 * KIB
    assert not store._flights
    assert not store._held
