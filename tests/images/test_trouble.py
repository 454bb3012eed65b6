"""Registries that break off, fail, lie or say nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiohttp import web

from aenv.errors import ImageMissing, ImageUnusable, NoSpace, RegistryUnavailable
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import UserPassword
from aenv.images.partial import WrongContent
from aenv.images.sources import NoProgress
from tests.images.builder import Document, files, image
from tests.images.conftest import AMD64, QUICK
from tests.images.pulling import Heard, pull, until
from tests.images.scripted import ScriptedServer, cut_after, for_path, status

MIB = 1 << 20


def one_layer(size: int = 4 * MIB) -> tuple[Document, str, bytes]:
    """An image of one layer, that layer's digest, and its bytes."""
    made = image([files({"a": os.urandom(size)})], compression="none")
    return made, made.layers[0], made.blobs[made.layers[0]]


def ranges(server: ScriptedServer, digest: str) -> list[str]:
    """From which byte on a blob was asked for, in turn."""
    return [each.headers.get("Range", "bytes=0-") for each in server.asked(digest)]


async def test_a_download_that_breaks_off_goes_on_where_it_was(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    server.troubles.append(for_path(digest, cut_after(data, MIB), times=3))
    heard = Heard()
    await pull(catalog, blobs, name, progress=heard)
    starts = [int(each.removeprefix("bytes=").removesuffix("-")) for each in ranges(server, digest)]
    assert starts == [0, MIB, 2 * MIB, 3 * MIB]
    done = [done for _, done, _ in heard.said]
    assert done == sorted(done)


async def test_more_interruptions_than_attempts_are_borne_while_it_goes_forward(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer()
    server.troubles.append(for_path(digest, cut_after(data, MIB // 2), times=2 * QUICK.attempts))
    await pull(catalog, blobs, server.add(made))


async def test_a_registry_that_ignores_ranges_sends_it_again(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    whole = server.blobs[digest]

    async def all_of_it(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=whole)

    server.troubles += [for_path(digest, cut_after(data, MIB), times=1), for_path(digest, all_of_it)]
    await pull(catalog, blobs, name)
    assert ranges(server, digest) == ["bytes=0-", f"bytes={MIB}-"]


@pytest.mark.parametrize(
    ("said", "error"),
    [("", ImageUnusable), ("bytes */1", ImageUnusable), (f"bytes {MIB - 1}-9/10", RegistryUnavailable)],
)
async def test_a_part_that_is_not_the_one_that_was_asked_for(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, said: str, error: type[Exception]
) -> None:
    made, digest, data = one_layer()

    async def another_part(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=206, body=data[:10], headers={"Content-Range": said})

    name = server.add(made)
    server.troubles += [for_path(digest, cut_after(data, MIB), times=1), for_path(digest, another_part)]
    with pytest.raises(error):
        await pull(catalog, blobs, name)
    assert not blobs.path(digest).exists()


async def test_what_came_before_a_restart_is_not_asked_for_again(
    server: ScriptedServer, catalog: ImageCatalog, tmp_path: Path
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    stall = asyncio.Event()
    server.troubles.append(for_path(digest, cut_after(data, MIB, stall=stall), times=1))
    before = BlobStore(tmp_path / "blobs", max_bytes=1 << 30, patience=QUICK)
    await before.open()
    task = asyncio.create_task(pull(catalog, before, name))
    partial = tmp_path / "blobs" / "partial" / digest.partition(":")[2]
    await until(lambda: partial.exists() and partial.stat().st_size == MIB)
    task.cancel()
    await asyncio.wait([task])
    stall.set()
    after = BlobStore(tmp_path / "blobs", max_bytes=1 << 30, patience=QUICK)
    await after.open()
    await pull(catalog, after, name)
    assert ranges(server, digest) == ["bytes=0-", f"bytes={MIB}-"]
    assert not partial.exists()


async def test_a_partial_file_that_was_damaged_is_begun_again(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    made, digest, _ = one_layer()
    name = server.add(made)
    partial = tmp_path / "blobs" / "partial" / digest.partition(":")[2]
    partial.write_bytes(bytes(MIB))
    await pull(catalog, blobs, name)
    assert ranges(server, digest) == [f"bytes={MIB}-", "bytes=0-"]
    partial.write_bytes(bytes(8 * MIB))
    blobs.path(digest).unlink()
    await pull(catalog, blobs, name)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_failures_that_may_pass_are_borne(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, code: int
) -> None:
    made, digest, _ = one_layer(1000)
    name = server.add(made)
    server.troubles += [
        for_path("/manifests/", status(code), times=2),
        for_path(digest, status(code, {"Retry-After": "0"}), times=2),
    ]
    await pull(catalog, blobs, name)


async def test_a_registry_that_asks_for_time_gets_it(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, _, _ = one_layer(1000)
    name = server.add(made)
    server.troubles.append(for_path("/manifests/", status(429, {"Retry-After": "1"}), times=1))
    loop = asyncio.get_running_loop()
    started = loop.time()
    await pull(catalog, blobs, name)
    assert loop.time() - started >= 1


async def test_a_registry_that_asks_for_too_much_time_is_given_up(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    name = server.add(one_layer(1000)[0])
    server.troubles.append(for_path("/manifests/", status(429, {"Retry-After": "3600"})))
    with pytest.raises(RegistryUnavailable, match="answers with status 429") as failed:
        await pull(catalog, blobs, name)
    assert failed.value.retry_after == 3600
    assert len([each for each in server.seen if "/manifests/" in each.path]) == 1


async def test_a_registry_that_fails_for_good_keeps_what_has_come(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    server.troubles += [for_path(digest, cut_after(data, MIB), times=1), for_path(digest, status(503))]
    with pytest.raises(RegistryUnavailable, match="answers with status 503"):
        await pull(catalog, blobs, name)
    server.troubles.clear()
    await pull(catalog, blobs, name)
    assert ranges(server, digest)[-1] == f"bytes={MIB}-"


async def test_a_connection_that_says_nothing_is_given_up(
    server: ScriptedServer, blobs: BlobStore, tmp_path: Path
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    forever = asyncio.Event()
    server.troubles.append(for_path(digest, cut_after(data, MIB, stall=forever), times=1))
    async with ImageCatalog(
        docker_config=tmp_path / "none", platform=AMD64, patience=QUICK, idle_seconds=0.2
    ) as catalog:
        await pull(catalog, blobs, name)
    forever.set()
    assert ranges(server, digest) == ["bytes=0-", f"bytes={MIB}-"]


async def test_a_blob_that_is_longer_than_it_was_said_to_be(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    made, digest, data = one_layer(1000)
    name = server.add(made)
    server.blobs[digest] = data + b"x"
    with pytest.raises(WrongContent, match=f"is longer than the {len(data)} bytes"):
        await pull(catalog, blobs, name)
    assert not (tmp_path / "blobs" / "partial" / digest.partition(":")[2]).exists()


async def test_a_blob_that_is_shorter_than_it_was_said_to_be(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer(1000)
    name = server.add(made)
    server.troubles.append(for_path(digest, cut_after(data[:500], 500)))
    with pytest.raises(RegistryUnavailable):
        await pull(catalog, blobs, name)


async def test_a_layer_that_is_not_there_is_named(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, _ = one_layer(1000)
    name = server.add(made)
    del server.blobs[digest]
    with pytest.raises(ImageMissing, match=f"has no {digest[:19]} of org/app"):
        await pull(catalog, blobs, name)


async def test_a_manifest_with_another_content_than_its_digest_is_refused(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, other = image([files({"a": b"1"})]), image([files({"a": b"2"})])
    server.add(other)
    server.documents = {made.digest: other}
    with pytest.raises(WrongContent, match="isn't what its digest says"):
        await pull(catalog, blobs, f"{server.host}/org/app@{made.digest}")


async def test_words_of_a_registry_are_repeated_without_their_tricks(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    name = server.add(one_layer(1000)[0])
    server.troubles.append(for_path("/manifests/", status(400, message="\x1b[31mred\nlog line" + "x" * 9999)))
    with pytest.raises(ImageUnusable, match=r"status 400 .* \(.31mredlog line") as failed:
        await pull(catalog, blobs, name)
    assert "\x1b" not in failed.value.message
    assert len(failed.value.message) < 500


async def test_a_cancelled_pull_leaves_the_download_to_others(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, _ = one_layer()
    name = server.add(made)
    release = asyncio.Event()

    async def wait(_request: web.Request) -> None:
        await release.wait()

    server.troubles.append(for_path(digest, wait, times=1))
    first, second = (asyncio.create_task(pull(catalog, blobs, name)) for _ in range(2))
    await until(lambda: len(server.asked(digest)) == 1)
    await asyncio.sleep(0.05)  # so that the second one has joined as well
    first.cancel()
    await asyncio.wait([first])
    release.set()
    await second
    assert len(server.asked(digest)) == 1


async def test_a_cancelled_pull_ends_its_downloads(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, data = one_layer()
    name = server.add(made)
    stall = asyncio.Event()
    server.troubles.append(for_path(digest, cut_after(data, MIB, stall=stall)))
    before = asyncio.all_tasks()
    task = asyncio.create_task(pull(catalog, blobs, name))
    await until(lambda: len(server.asked(digest)) == 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    ours = {each for each in asyncio.all_tasks() - before if "aiohttp" not in repr(each)}
    stall.set()
    assert not ours


async def test_who_waits_for_anothers_download_tries_for_itself_when_that_fails(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made, digest, _ = one_layer()
    name = server.add(made)
    release = asyncio.Event()

    async def only_for_the_second(request: web.Request) -> web.StreamResponse | None:
        if "Authorization" in request.headers:
            return None
        await release.wait()
        return await status(403)(request)

    server.troubles.append(for_path(digest, only_for_the_second))

    async def challenge(request: web.Request) -> web.StreamResponse | None:
        if catalog_wants_login and "Authorization" not in request.headers:
            return await status(401, {"WWW-Authenticate": "Basic realm=x"})(request)
        return None

    catalog_wants_login = False
    first = asyncio.create_task(pull(catalog, blobs, name))
    await until(lambda: len(server.asked(digest)) == 1)
    catalog_wants_login = True
    server.troubles.insert(0, for_path("/manifests/", challenge))
    second = asyncio.create_task(pull(catalog, blobs, name, UserPassword("u", "p")))
    await until(lambda: len(server.asked("/manifests/")) == 2)
    await asyncio.sleep(0.05)
    release.set()
    with pytest.raises(ImageMissing):
        await first
    await second


async def test_a_disk_without_room_is_said_before_anything_is_downloaded(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, digest, _ = one_layer()
    name = server.add(made)
    monkeypatch.setattr("aenv.images.blobs.free_bytes", lambda _folder: 65 * MIB)
    with pytest.raises(NoSpace, match="no room for its"):
        await pull(catalog, blobs, name)
    assert not server.asked(digest)


async def test_layers_come_several_at_a_time_but_not_all(
    server: ScriptedServer, catalog: ImageCatalog, tmp_path: Path
) -> None:
    made = image([files({"a": bytes([number])}) for number in range(12)])
    name = server.add(made)
    store = BlobStore(tmp_path / "few", max_bytes=1 << 30, downloads=3, patience=QUICK)
    await store.open()
    now = most = 0

    async def count(request: web.Request) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    server.troubles.append(for_path("/blobs/", count))
    async with catalog.named(name).open(store, NoProgress()) as opened:
        await opened.fetch()
    assert most == 3


async def test_a_registry_that_stands_still_holds_up_its_own_images_only(
    server: ScriptedServer, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    stuck = image([files({"a": bytes([number])}) for number in range(8)])
    forever = asyncio.Event()
    for digest in stuck.layers:
        server.troubles.append(for_path(digest, cut_after(stuck.blobs[digest], 0, stall=forever)))
    waiting = asyncio.create_task(pull(catalog, blobs, server.add(stuck)))
    await until(lambda: len([each for each in stuck.layers if server.asked(each)]) == 4)
    await pull(catalog, blobs, other_server.add(one_layer(1000)[0]))
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    forever.set()
