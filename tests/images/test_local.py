"""Images in folders and archives of this host."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from aenv.errors import ImageMissing, ImageUnusable, NoSpace
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import Compression, FetchedImage
from aenv.images.partial import WrongContent
from aenv.images.sources import NoProgress
from tests.images.builder import (
    archive,
    attestation,
    compress,
    decompress,
    digest_of,
    docker_save,
    entry,
    files,
    image,
    index,
    oci_layout,
)
from tests.images.pulling import LAYERS
from tests.small_disk import small_disk

CONFIG = {"Cmd": ["run"], "Env": ["A=1"]}
MADE = image(LAYERS, config=CONFIG)


async def fetch(
    catalog: ImageCatalog, blobs: BlobStore, path: Path, *, tag: str | None = None, is_root: bool = False
) -> FetchedImage:
    """All of an image, whose layers are compared with what they should be."""
    async with catalog.local(path, tag=tag, is_root=is_root).open(blobs, NoProgress()) as opened:
        fetched = await opened.fetch()
        for layer in fetched.layers:
            data = layer.path.read_bytes()
            assert digest_of(data) == layer.digest
            assert digest_of(decompress(data, layer.compression)) == layer.diff_id
    return fetched


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, content: bytes, compression: Compression = "none") -> Path:
    path.write_bytes(compress(content, compression))
    return path


def partial_files(blobs: BlobStore) -> list[Path]:
    return list((blobs.path("sha256:x").parent.parent / "partial").iterdir())


async def test_a_layout_in_a_folder(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    layout = oci_layout(index([attestation(MADE), image(LAYERS, architecture="arm64"), MADE]))
    fetched = await fetch(catalog, blobs, write_folder(tmp_path / "layout", layout))
    assert fetched.digest == MADE.digest
    assert fetched.reference == f"{tmp_path / 'layout'}@{MADE.digest}"
    assert fetched.config.cmd == ("run",)
    assert [layer.diff_id for layer in fetched.layers] == list(map(digest_of, LAYERS))


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
async def test_a_layout_in_an_archive(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, compression: Compression
) -> None:
    path = write_archive(tmp_path / "image.tar", files(oci_layout(MADE)), compression)
    fetched = await fetch(catalog, blobs, path)
    assert fetched.digest == MADE.digest
    assert [layer.digest for layer in fetched.layers] == list(MADE.layers)
    assert not partial_files(blobs)


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_what_docker_saved(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, compression: Compression
) -> None:
    path = write_archive(tmp_path / "saved.tar", files(docker_save(MADE, LAYERS)), compression)
    fetched = await fetch(catalog, blobs, path)
    assert fetched.config.env == {"A": "1"}
    assert [layer.digest for layer in fetched.layers] == list(map(digest_of, LAYERS))
    assert fetched.digest == json.loads(MADE.data)["config"]["digest"]


async def test_compressed_layers_in_what_docker_saved(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    compressed = [gzip.compress(data) for data in LAYERS]
    fetched = await fetch(catalog, blobs, write_folder(tmp_path / "saved", docker_save(MADE, compressed)))
    assert [layer.digest for layer in fetched.layers] == list(map(digest_of, compressed))
    assert [layer.diff_id for layer in fetched.layers] == list(map(digest_of, LAYERS))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
async def test_a_layer_that_is_a_link_to_an_equal_one(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, kind: bytes
) -> None:
    twice = image([LAYERS[0], LAYERS[0]])
    contents = docker_save(twice, [LAYERS[0], LAYERS[0]])
    first, second = sorted(name for name in contents if name.endswith("layer.tar"))
    link = f"../{first}" if kind == tarfile.SYMTYPE else first
    members = [entry(name, data) for name, data in contents.items() if name != second]
    path = write_archive(tmp_path / "linked.tar", archive([*members, entry(second, kind=kind, link=link)]))
    fetched = await fetch(catalog, blobs, path)
    assert fetched.layers[0] == fetched.layers[1]


@pytest.mark.parametrize("saved", [False, True])
async def test_diff_ids_are_computed_where_there_are_none(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, saved: bool
) -> None:
    made = image(LAYERS, compression=["gzip", "zstd"], diff_ids=[])
    contents = docker_save(made, LAYERS) if saved else oci_layout(made)
    fetched = await fetch(catalog, blobs, write_folder(tmp_path / "image", contents))
    assert [layer.diff_id for layer in fetched.layers] == list(map(digest_of, LAYERS))


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
async def test_a_root_file_system(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, compression: Compression
) -> None:
    root = files({"bin/sh": b"#!", "etc/passwd": b"root:x:0:0::/:/bin/sh\n"})
    fetched = await fetch(catalog, blobs, write_archive(tmp_path / "root.tar", root, compression))
    (layer,) = fetched.layers
    assert layer.diff_id == digest_of(root)
    assert layer.compression == compression
    assert fetched.config.env == {}


async def test_a_root_file_system_with_very_many_files(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    root = files({f"usr/{number}": b"" for number in range(6000)} | {"manifest.json": b"[]"})
    fetched = await fetch(catalog, blobs, write_archive(tmp_path / "root.tar", root))
    assert fetched.layers[0].diff_id == digest_of(root)


async def test_an_archive_can_be_taken_as_a_root_file_system_whatever_is_in_it(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    root = files({"manifest.json": b"[]"})
    path = write_archive(tmp_path / "root.tar", root)
    with pytest.raises(ImageMissing):
        await fetch(catalog, blobs, path)
    assert (await fetch(catalog, blobs, path, is_root=True)).layers[0].diff_id == digest_of(root)


async def test_one_of_several_images_in_a_layout(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    first, second = oci_layout(MADE, name="one"), oci_layout(image(LAYERS[:1]), name="docker.io/app:two")
    both = json.loads(first["index.json"])
    both["manifests"] += json.loads(second["index.json"])["manifests"]
    path = write_folder(tmp_path / "both", {**first, **second, "index.json": json.dumps(both).encode()})
    assert (await fetch(catalog, blobs, path, tag="one")).digest == MADE.digest
    assert (await fetch(catalog, blobs, path, tag="two")).digest == image(LAYERS[:1]).digest
    with pytest.raises(ImageUnusable, match=r"several images: say which of docker\.io/app:two, one"):
        await fetch(catalog, blobs, path)
    with pytest.raises(ImageMissing, match="has no image three, but: docker"):
        await fetch(catalog, blobs, path, tag="three")


async def test_one_of_several_images_that_docker_saved(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    first, second = docker_save(MADE, LAYERS, tag="app:one"), docker_save(image(LAYERS[:1]), LAYERS[:1])
    both = json.loads(first["manifest.json"]) + json.loads(second["manifest.json"])
    path = write_folder(tmp_path / "both", {**second, **first, "manifest.json": json.dumps(both).encode()})
    assert len((await fetch(catalog, blobs, path, tag="one")).layers) == 2
    assert len((await fetch(catalog, blobs, path, tag="test:latest")).layers) == 1
    with pytest.raises(ImageUnusable, match="say which of app:one, test:latest"):
        await fetch(catalog, blobs, path)
    with pytest.raises(ImageMissing, match="has no image three"):
        await fetch(catalog, blobs, path, tag="three")


async def test_a_damaged_layer(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    contents = oci_layout(MADE)
    name = f"blobs/{MADE.layers[1].replace(':', '/')}"
    data = contents[name]
    changed = write_folder(tmp_path / "changed", {**contents, name: data[:-1] + b"?"})
    with pytest.raises(WrongContent, match="is damaged"):
        await fetch(catalog, blobs, changed)
    shorter = write_folder(tmp_path / "shorter", {**contents, name: data[:-1]})
    with pytest.raises(WrongContent, match=f"has {len(data) - 1} bytes; {len(data)} were to be expected"):
        await fetch(catalog, blobs, shorter)
    (shorter / name).unlink()
    with pytest.raises(ImageUnusable, match="lacks sha256:"):
        await fetch(catalog, blobs, shorter)


async def test_a_damaged_manifest(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    contents = oci_layout(MADE)
    name = f"blobs/{MADE.digest.replace(':', '/')}"
    path = write_folder(tmp_path / "layout", {**contents, name: contents[name].replace(b"schema", b"SCHEMA")})
    with pytest.raises(WrongContent, match="is damaged"):
        await fetch(catalog, blobs, path)


async def test_names_that_lead_out_of_a_folder(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(LAYERS[0])
    for name in ("../secret", str(tmp_path / "secret")):
        listing = [{"Config": "c.json", "RepoTags": None, "Layers": [name]}]
        made = image(LAYERS[:1])
        contents = {**docker_save(made, LAYERS[:1]), "manifest.json": json.dumps(listing).encode()}
        contents["c.json"] = next(data for data in made.blobs.values() if data.startswith(b"{"))
        path = write_folder(tmp_path / "leads-out", contents)
        with pytest.raises(ImageUnusable, match="leads out of the folder"):
            await fetch(catalog, blobs, path)
    (path / "link").symlink_to("../secret")
    listing[0]["Layers"] = ["link"]
    (path / "manifest.json").write_text(json.dumps(listing))
    with pytest.raises(ImageUnusable, match="leads out of the folder"):
        await fetch(catalog, blobs, path)


@pytest.mark.parametrize("link", ["../../../etc/passwd", "../../secret"])
async def test_links_that_lead_out_of_an_archive(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, link: str
) -> None:
    contents = docker_save(image(LAYERS[:1]), LAYERS[:1])
    layer = next(name for name in contents if name.endswith("layer.tar"))
    del contents[layer]
    members = [entry(name, data) for name, data in contents.items()]
    linked = archive([*members, entry(layer, kind=tarfile.SYMTYPE, link=link)])
    with pytest.raises(ImageUnusable, match="leads out of the archive"):
        await fetch(catalog, blobs, write_archive(tmp_path / "links.tar", linked))


async def test_links_without_end(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    loop = archive([entry("manifest.json", kind=tarfile.SYMTYPE, link="manifest.json")])
    with pytest.raises(ImageUnusable, match="a link without end"):
        await fetch(catalog, blobs, write_archive(tmp_path / "loop.tar", loop))


async def test_entries_that_lead_out_of_an_archive(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    path = write_archive(tmp_path / "out.tar", files({"../../etc/cron.d/evil": b"* * * * *"}))
    with pytest.raises(ImageUnusable, match="leads out of the archive"):
        await fetch(catalog, blobs, path)


async def test_a_header_that_would_fill_the_memory(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    path = tmp_path / "huge.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 1 << 40)
    with pytest.raises(ImageUnusable, match="no archive that can be read: a header of 1099511627776 bytes"):
        await fetch(catalog, blobs, path)


async def test_names_that_would_fill_the_memory(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    names = (entry(str(number) + "/x" * (2 << 20)) for number in range(5))
    path = write_archive(tmp_path / "names.tar.gz", archive(names), "gzip")
    with pytest.raises(ImageUnusable, match="names have more than"):
        await fetch(catalog, blobs, path)


async def test_a_document_that_would_fill_the_memory(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "layout", oci_layout(MADE))
    os.truncate(path / "index.json", 1 << 40)
    with pytest.raises(ImageUnusable, match="has 1099511627776 bytes where at most"):
        await fetch(catalog, blobs, path)


@pytest.mark.parametrize("content", [b"not an archive" * 100, b"\x1f\x8bnot gzip" * 100, b"\xfd7zXZ\0", b"x"])
async def test_what_is_no_archive(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ImageUnusable):
        await fetch(catalog, blobs, path)
    assert not partial_files(blobs)


async def test_an_archive_that_is_cut_short(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    whole = files(oci_layout(MADE))
    for name, data in (("plain", whole), ("gzip", gzip.compress(whole))):
        path = tmp_path / name
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(ImageUnusable):
            await fetch(catalog, blobs, path)
    assert not partial_files(blobs)


async def test_what_is_no_image_at_all(catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(ImageMissing, match="there is no file or folder"):
        await fetch(catalog, blobs, tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ImageUnusable, match=r"has no index\.json and no manifest\.json"):
        await fetch(catalog, blobs, tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageMissing):
        await fetch(catalog, blobs, tmp_path / "pipe")


async def test_a_pipe_in_the_place_of_a_layer(
    catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "layout", oci_layout(MADE))
    (path / "index.json").unlink()
    os.mkfifo(path / "index.json")
    with pytest.raises(ImageUnusable, match="is not a regular file"):
        await fetch(catalog, blobs, path)


async def test_a_full_disk(catalog: ImageCatalog, tmp_path: Path) -> None:
    made = image([files({"big": os.urandom(12 << 20)})])
    path = write_archive(tmp_path / "image.tar.gz", files(oci_layout(made)), "gzip")
    with small_disk(tmp_path / "disk", 8) as disk:
        store = BlobStore(disk / "blobs", max_bytes=1 << 30)
        await store.open()
        with pytest.raises(NoSpace, match="disk is full"):
            await fetch(catalog, store, path)
        assert not partial_files(store)
