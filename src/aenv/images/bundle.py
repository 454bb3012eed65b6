"""The guest bundle: the kernel and the initramfs that every microVM's first boot starts from.

On disk, below the bundle's folder:

    kernel/            the distribution's kernel and modules, kept so that a new envd needs no download
    <identity>/        vmlinuz, initrd and their hashes, made once and never changed
    current            the identity in use; replaced atomically
    lock               held by whoever builds

Whatever is half made has a name that starts with `.tmp-`, and the next build removes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.durable import sync
from aenv.errors import HostNotReady
from aenv.images.cpio import CpioWriter
from aenv.images.kernel import Kernel, fetch_kernel
from aenv.images.locks import exclusive
from aenv.images.progress import Progress
from aenv.images.requirements import require
from aenv.images.scratch import publish, remove_leftovers, scratch_folder, temporary
from aenv.images.sealed import read_sealed, seal

_KERNEL = "kernel"
_IMAGE = "vmlinuz"
_INITRD = "initrd"
_CURRENT = "current"
_LOCK = "lock"
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_GUEST_FOLDERS = ("dev", "proc", "sys", "newroot", "modules")


@dataclass(frozen=True)
class GuestBundle:
    """What a VMM is given to boot a guest."""

    kernel: Path
    initrd: Path
    kernel_version: str
    identity: str
    """16 hex digits of a SHA-256 over kernel, modules and envd: equal bundles have equal identities."""


async def build_bundle(folder: Path, envd: Path, *, progress: Progress) -> GuestBundle:
    """Make the bundle in `folder` from the distribution's kernel and the guest agent `envd`, or find it.

    The kernel is downloaded once and then kept; delete `folder` to get a newer one. A build may be
    interrupted at any moment, and several may run at once.

    Raises HostNotReady if a tool, the kernel package or envd is missing.
    """
    require("apt-get", "dpkg-deb")
    await asyncio.to_thread(_prepare, folder, envd)
    with progress.step("guest bundle") as line:
        async with exclusive(folder / _LOCK, line):
            await asyncio.to_thread(remove_leftovers, folder)
            kernel = await asyncio.to_thread(_stored_kernel, folder) or await _new_kernel(folder, line)
            line("packing the initramfs")
            return await asyncio.to_thread(_assemble, folder, kernel, envd)


def _prepare(folder: Path, envd: Path) -> None:
    if not envd.is_file():
        raise HostNotReady(f"the guest agent {envd} is missing: install this package again, with Go at hand")
    folder.mkdir(parents=True, exist_ok=True)


async def _new_kernel(folder: Path, line: Callable[[str], None]) -> Kernel:
    async with scratch_folder(folder) as scratch:
        fetched = await fetch_kernel(scratch, line)
        await asyncio.to_thread(_store_kernel, folder, fetched)
    kernel = await asyncio.to_thread(_stored_kernel, folder)
    if kernel is None:
        raise HostNotReady(f"{folder / _KERNEL} can't be read back after it was written: check the disk")
    return kernel


def load_bundle(folder: Path) -> GuestBundle:
    """The bundle made last, after its files were compared with their hashes (tens of milliseconds).

    Raises HostNotReady if there is none or it is damaged.
    """
    try:
        identity = (folder / _CURRENT).read_text(errors="replace").strip()
    except OSError as error:
        raise HostNotReady(f"there is no guest bundle in {folder}: run `aenv setup`") from error
    bundle = _read_bundle(folder, identity)
    if bundle is None:
        raise HostNotReady(f"the guest bundle in {folder} is damaged: run `aenv setup` to make it again")
    return bundle


def initramfs(modules: tuple[tuple[str, bytes], ...], envd: bytes) -> bytes:
    """The archive the kernel unpacks: envd as `/init` and the modules with their order in `/modules/order`.

    It isn't compressed: a guest whose processor is emulated reads it faster than it could unpack it.
    """
    archive = CpioWriter()
    for name in _GUEST_FOLDERS:
        archive.directory(name)
    archive.character_device("dev/console", 5, 1)  # the kernel opens it as the standard streams of /init
    archive.file("init", envd, mode=0o755)
    archive.file("modules/order", "".join(f"{name}\n" for name, _ in modules).encode())
    for name, content in modules:
        archive.file(f"modules/{name}", content)
    return archive.finish()


def _assemble(folder: Path, kernel: Kernel, envd: Path) -> GuestBundle:
    initrd = initramfs(kernel.modules, envd.read_bytes())
    identity = hashlib.sha256(kernel.image.read_bytes() + initrd).hexdigest()[:16]
    if _read_bundle(folder, identity) is None:
        with temporary(folder) as scratch:
            made = scratch / identity
            made.mkdir()
            shutil.copyfile(kernel.image, made / _IMAGE)
            (made / _INITRD).write_bytes(initrd)
            seal(made, kernel.version, [_IMAGE, _INITRD])
            publish(made, folder / identity)
    with temporary(folder) as scratch:
        pointer = scratch / _CURRENT
        pointer.write_text(identity + "\n")
        sync(pointer)
        publish(pointer, folder / _CURRENT)
    return load_bundle(folder)


def _read_bundle(folder: Path, identity: str) -> GuestBundle | None:
    if not _IDENTITY.fullmatch(identity):
        return None
    made = folder / identity
    sealed = read_sealed(made)
    if sealed is None:
        return None
    return GuestBundle(made / _IMAGE, made / _INITRD, sealed.version, identity)


def _store_kernel(folder: Path, kernel: Kernel) -> None:
    with temporary(folder) as scratch:
        made = scratch / _KERNEL
        made.mkdir()
        shutil.copyfile(kernel.image, made / _IMAGE)
        for name, content in kernel.modules:
            (made / name).write_bytes(content)
        seal(made, kernel.version, [_IMAGE, *(name for name, _ in kernel.modules)])
        publish(made, folder / _KERNEL)


def _stored_kernel(folder: Path) -> Kernel | None:
    stored = folder / _KERNEL
    sealed = read_sealed(stored)
    if sealed is None:
        return None
    modules = tuple((name, (stored / name).read_bytes()) for name in sealed.files if name != _IMAGE)
    return Kernel(sealed.version, stored / _IMAGE, modules)
