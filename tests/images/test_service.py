"""From a registry to a disk: every file is as in its source, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import ImageUnusable, InvalidRequest
from aenv.runtimes.base import Resources
from tests.images.builder import Document, archive, entry, files, image
from tests.images.converting import DISK_MIB, Rig, converting
from tests.images.registries import Registry
from tests.images.trees import unpack
from tests.server import ROOT


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with converting(tmp_path) as rig:
        yield rig


LAYERS = [
    archive(
        [
            entry("etc", kind=tarfile.DIRTYPE, mode=0o755),
            entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n"),
            entry("bin/busybox", os.urandom(200_000), mode=0o4755),
            entry("bin/sh", kind=tarfile.SYMTYPE, link="busybox"),
            entry("bin/hard", kind=tarfile.LNKTYPE, link="bin/busybox"),
            entry("opt/gone", b"x"),
            entry("dev/null", kind=tarfile.CHRTYPE, device=(1, 3), mode=0o666),
        ]
    ),
    archive([entry("opt/.wh.gone"), entry("opt/b", b"b", owner=(7, 8), pax={"SCHILY.xattr.user.x": "y"})]),
    archive([entry("bin/hard", b"another"), entry("srv/late", b"c", pax={"mtime": "5.25"})]),
]


def push(registry: Registry, document: Document) -> str:
    """Push an image to a repository of its own and return its name."""
    return registry.push(document.digest[7:19], document)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_the_disk_is_as_its_layers_say(
    rig: Rig, registry: Registry, compression: Any, tmp_path: Path
) -> None:
    config = {"Env": ["A=b"], "Cmd": ["sh"], "User": "7"}
    name = push(registry, image(LAYERS, compression=compression, config=config))
    made = await rig.get(name)
    assert (dict(made.config.env), made.config.cmd, made.config.user) == ({"A": "b"}, ("sh",), "7")
    assert made.capture.resources == Resources(2, 512, DISK_MIB)
    found = await rig.tree(made.capture)
    source = tmp_path / "source"
    source.mkdir(mode=0o755)
    expected = unpack(source, *LAYERS)
    added = {"etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf", "proc", "root", "run", "sys", "tmp"}
    assert set(found) - set(expected) == added
    for path in set(expected) - {".", "etc"}:
        assert found[path] == expected[path] | {"mtime": found[path]["mtime"]}
        if "mtime" in expected[path] and path not in ("bin", "opt", "srv", "dev"):
            assert found[path]["mtime"] == expected[path]["mtime"]


async def test_nothing_is_done_twice(rig: Rig, registry: Registry) -> None:
    first = await rig.get(push(registry, image(LAYERS)))
    assert rig.edits == [["apply_layer"], ["apply_layer"], ["apply_layer"], ["provision"]]
    rig.edits.clear()
    again = await rig.get(push(registry, image(LAYERS, compression="zstd")))
    assert (rig.edits, again.key) == ([], first.key)
    other = await rig.get(push(registry, image([*LAYERS[:2], files({"other": b""})])))
    assert rig.edits == [["apply_layer"], ["provision"]]
    assert other.capture.layers[:2] == first.capture.layers[:2]
    assert "other" in await rig.tree(other.capture)


async def test_many_who_want_the_same_at_once(rig: Rig, registry: Registry) -> None:
    names = [push(registry, image(LAYERS)), push(registry, image([*LAYERS[:2], files({"other": b""})]))]
    made = await asyncio.gather(*(rig.get(name) for name in names * 4))
    assert len({each.key for each in made}) == 2
    assert len(rig.edits) == 4 + 2


async def test_what_was_finished_stays_when_a_layer_is_bad(rig: Rig, registry: Registry) -> None:
    bad = [*LAYERS, files({"a": b"x", "a/b": b"y"})]
    with pytest.raises(
        ImageUnusable, match=r"layer 4 of 4 \(sha256:\w+\): 'a/b' can't be put there: Not a directory"
    ):
        await rig.get(push(registry, image(bad)))
    assert len(rig.edits) == 4
    rig.edits.clear()
    await rig.get(push(registry, image(LAYERS)))
    assert rig.edits == [["provision"]]
    folders = list((rig.home / "captures").iterdir())
    assert len(folders) == 4
    assert all(list(folder.iterdir()) for folder in folders)


async def test_a_layer_that_is_not_what_the_image_says(rig: Rig, registry: Registry) -> None:
    ids = ["sha256:" + "0" * 64]
    with pytest.raises(
        ImageUnusable, match=r"layer 1 of 1 .* has the digest sha256:\w+, the image says sha256:0+"
    ):
        await rig.get(push(registry, image(LAYERS[:1], diff_ids=ids)))


async def test_an_image_that_is_too_large_for_its_disk(rig: Rig, registry: Registry) -> None:
    with pytest.raises(ImageUnusable, match=f"layer 1 of 1 .* doesn't fit a disk of {DISK_MIB} MiB"):
        await rig.get(push(registry, image([files({"big": bytes(DISK_MIB << 20)})])))


async def test_an_image_without_layers(rig: Rig, registry: Registry) -> None:
    made = await rig.get(push(registry, image([])))
    assert {"etc/passwd", "home/user", "tmp"} < set(await rig.tree(made.capture))


async def test_a_larger_disk_is_asked_for(rig: Rig, registry: Registry) -> None:
    name = push(registry, image(LAYERS[:1]))
    small, large = await rig.get(name), await rig.get(name, disk_mib=4 * DISK_MIB)
    assert large.capture.resources.disk_mib == 4 * DISK_MIB
    assert rig.edits == [["apply_layer"], ["provision"], []]
    assert await rig.tree(large.capture) == await rig.tree(small.capture)
    with pytest.raises(InvalidRequest, match="at least 64 MiB, the server's AENV_DISK_MIB: 63"):
        await rig.get(name, disk_mib=63)


async def test_images_of_many_layers_are_not_as_many_disks(rig: Rig, registry: Registry) -> None:
    layers = [files({f"file{number}": b"%d" % number}) for number in range(30)]
    made = await rig.get(push(registry, image(layers)))
    assert len(made.capture.layers) == 16 + 2 + 1
    assert {f"file{number}" for number in range(30)} < set(await rig.tree(made.capture))


async def test_what_is_cancelled_goes_on_from_there(rig: Rig, registry: Registry) -> None:
    name = push(registry, image(LAYERS))
    seen = asyncio.Event()

    def say(line: str) -> None:
        if "layer 2 of 3" in line:
            seen.set()

    task = asyncio.create_task(rig.get(name, say=say))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.edits.clear()
    made = await rig.get(name)
    assert rig.edits[-2:] == [["apply_layer"], ["provision"]]
    assert len(rig.edits) <= 3
    assert "opt/gone" not in await rig.tree(replace(made.capture))
