"""The bundle is made once, notices damage, and changes only with what is in it."""

from __future__ import annotations

import asyncio
import lzma
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.errors import HostNotReady
from aenv.images import bundle as bundles
from aenv.images.bundle import GuestBundle, build_bundle, load_bundle
from aenv.images.kernel import MODULES, Kernel, read_kernel
from aenv.images.progress import QuietProgress

VERSION = "6.1.0-0-test"


class Archive:
    """Stands in for the distribution's archive, and counts how often it is asked."""

    def __init__(self) -> None:
        self.fetches = 0

    async def fetch(self, scratch: Path, on_line: Callable[[str], None]) -> Kernel:
        self.fetches += 1
        on_line("fetching")
        image = scratch / "image"
        await asyncio.to_thread(image.write_bytes, b"kernel" * 1000)
        return Kernel(VERSION, image, tuple((f"{name}.ko", name.encode()) for name in MODULES))


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    archive = Archive()
    monkeypatch.setattr(bundles, "fetch_kernel", archive.fetch)
    return archive


@pytest.fixture
def envd(tmp_path: Path) -> Path:
    path = tmp_path / "envd"
    path.write_bytes(b"first envd")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "bundle"


async def build(folder: Path, envd: Path) -> GuestBundle:
    return await build_bundle(folder, envd, progress=QuietProgress())


def replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def bundle_content(bundle: GuestBundle) -> tuple[bytes, bytes]:
    return bundle.kernel.read_bytes(), bundle.initrd.read_bytes()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_second_build_downloads_and_writes_nothing(
    archive: Archive, folder: Path, envd: Path
) -> None:
    first = await build(folder, envd)
    inode = first.initrd.stat().st_ino
    second = await build(folder, envd)
    assert first == second == load_bundle(folder)
    assert second.initrd.stat().st_ino == inode
    assert archive.fetches == 1
    assert names(folder) == {"kernel", "current", "lock", first.identity}


async def test_the_bundle_holds_the_kernel_and_an_initramfs_with_envd_and_the_module_order(
    archive: Archive, folder: Path, envd: Path
) -> None:
    bundle = await build(folder, envd)
    assert bundle.kernel_version == VERSION
    assert bundle.kernel.read_bytes() == b"kernel" * 1000
    initrd = bundle.initrd.read_bytes()
    assert b"first envd" in initrd
    assert "".join(f"{name}.ko\n" for name in MODULES).encode() in initrd


async def test_a_new_envd_changes_the_identity_but_keeps_the_kernel_and_the_old_bundle(
    archive: Archive, folder: Path, envd: Path
) -> None:
    old = await build(folder, envd)
    replace(envd, b"second envd")
    new = await build(folder, envd)
    assert new.identity != old.identity
    assert archive.fetches == 1
    assert load_bundle(folder) == new
    assert old.initrd.exists(), "a server that runs may still boot from it"


def test_without_a_bundle_the_error_says_what_to_run(folder: Path) -> None:
    with pytest.raises(HostNotReady, match="aenv setup"):
        load_bundle(folder)


@pytest.mark.parametrize("victim", ["kernel", "initrd"])
async def test_damage_is_noticed_and_mended(archive: Archive, folder: Path, envd: Path, victim: str) -> None:
    bundle = await build(folder, envd)
    damaged: Path = getattr(bundle, victim)
    content = bundle_content(bundle)
    damage(damaged)
    with pytest.raises(HostNotReady, match=r"damaged.*aenv setup"):
        load_bundle(folder)
    assert await build(folder, envd) == bundle
    assert bundle_content(bundle) == content
    assert archive.fetches == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"kernel", b"../../etc", b"\xff\xfe", b"\0"])
async def test_a_damaged_pointer_is_noticed_and_mended(
    archive: Archive, folder: Path, envd: Path, content: bytes
) -> None:
    bundle = await build(folder, envd)
    (folder / "current").write_bytes(content)
    with pytest.raises(HostNotReady, match="aenv setup"):
        load_bundle(folder)
    assert await build(folder, envd) == bundle


async def test_a_damaged_stored_kernel_is_fetched_again(archive: Archive, folder: Path, envd: Path) -> None:
    bundle = await build(folder, envd)
    (folder / "kernel" / "virtio.ko").write_bytes(b"")
    assert await build(folder, envd) == bundle
    assert archive.fetches == 2


async def test_leftovers_of_a_killed_build_are_removed(archive: Archive, folder: Path, envd: Path) -> None:
    (folder / ".tmp-killed" / "tree").mkdir(parents=True)
    bundle = await build(folder, envd)
    assert names(folder) == {"kernel", "current", "lock", bundle.identity}


async def test_two_builds_at_once_make_one_bundle(archive: Archive, folder: Path, envd: Path) -> None:
    first, second = await asyncio.gather(build(folder, envd), build(folder, envd))
    assert first == second
    assert archive.fetches == 1


async def test_a_failed_download_leaves_nothing_half_made(
    monkeypatch: pytest.MonkeyPatch, folder: Path, envd: Path
) -> None:
    async def fail(scratch: Path, on_line: Callable[[str], None]) -> Kernel:
        raise HostNotReady("no archive")

    monkeypatch.setattr(bundles, "fetch_kernel", fail)
    with pytest.raises(HostNotReady, match="no archive"):
        await build(folder, envd)
    assert names(folder) == {"lock"}


async def test_a_missing_envd_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HostNotReady, match="no-envd is missing"):
        await build(folder, tmp_path / "no-envd")


def kernel_tree(tmp_path: Path, *, builtin: str = "") -> Path:
    tree = tmp_path / "tree"
    drivers = tree / "lib/modules" / VERSION / "kernel/drivers"
    drivers.mkdir(parents=True)
    (tree / "boot").mkdir()
    (tree / "boot" / f"vmlinuz-{VERSION}").write_bytes(b"kernel")
    (tree / "lib/modules" / VERSION / "modules.builtin").write_text(builtin)
    for name in MODULES:
        (drivers / f"{name}.ko").write_bytes(name.encode())
    return tree


def test_built_in_modules_are_left_out_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path, builtin="kernel/drivers/virtio.ko\nkernel/net/core/failover.ko\n")
    for name in ("virtio", "failover"):
        next(tree.rglob(f"{name}.ko")).unlink()
    kernel = read_kernel(tree, VERSION)
    assert [name for name, _ in kernel.modules] == [
        f"{name}.ko" for name in MODULES if name not in ("virtio", "failover")
    ]


def test_compressed_modules_are_unpacked(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path)
    plain = next(tree.rglob("virtio_blk.ko"))
    plain.with_suffix(".ko.xz").write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    if shutil.which("zstd"):
        subprocess.run(["zstd", "--rm", "-q", next(tree.rglob("virtio_net.ko"))], check=True)
    kernel = read_kernel(tree, VERSION)
    assert kernel.modules == tuple((f"{name}.ko", name.encode()) for name in MODULES)


def test_a_kernel_that_lacks_a_module_is_refused(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path)
    next(tree.rglob("virtio_blk.ko")).unlink()
    with pytest.raises(HostNotReady, match="no module virtio_blk"):
        read_kernel(tree, VERSION)
