"""Everything between a registry and a disk. As a program: one image, `python -m … NAME HOME`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.database import Database
from aenv.disks.edits import Edit
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.convert import Converter
from aenv.images.manifests import Platform
from aenv.images.service import Image, ImageService
from aenv.runtimes.base import Capture, Resources, RuntimeIdentity
from aenv.runtimes.qemu.runtime import QemuRuntime
from aenv.snapshots.captures import Captures
from aenv.snapshots.disk_cache import DiskCache
from tests.images.trees import Tree, told_tree

DISK_MIB = 64
IDENTITY = RuntimeIdentity("qemu", "test", "test", "test")


class Runtime(QemuRuntime):
    """One that boots nothing; `edits` has the names of the functions of each disk that was made."""

    def __init__(self) -> None:
        super().__init__(None, IDENTITY, lambda _slot: -1, asked="tcg")  # type: ignore[arg-type]
        self.edits: list[list[str]] = []

    async def edit_disk(self, disk: Capture | None, folder: Path, edits: Any, **options: Any) -> Capture:
        """Note it, and do it."""
        self.edits.append([edit.function.partition(":")[2] for edit in edits])
        return await super().edit_disk(disk, folder, edits, **options)


@dataclass
class Rig:
    """What tests need of it."""

    home: Path
    runtime: Runtime
    images: ImageService
    captures: Captures
    edits: list[list[str]] = field(default_factory=list)

    async def get(self, name: str, **options: Any) -> Image:
        """An image, which may be given up at once."""
        with ExitStack() as keep:
            return await self.images.get(name, keep=keep, **options)

    async def tree(self, capture: Capture) -> Tree:
        """All that is on a disk."""
        lines: list[str] = []
        folder = self.home / "look"
        folder.mkdir()
        size = capture.resources.disk_mib
        telling = [Edit("tests.images.trees:tell_tree")]
        await QemuRuntime.edit_disk(self.runtime, capture, folder, telling, disk_mib=size, say=lines.append)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return told_tree(lines)


@asynccontextmanager
async def converting(home: Path) -> AsyncIterator[Rig]:
    """All of it in one folder, as a server finds it when it starts."""
    (home / "captures").mkdir(exist_ok=True)
    database = await Database.open(home / "aenv.db")
    captures = Captures(database, home, home / "captures")
    await captures.sweep()
    disks = DiskCache(database, captures, home, 1 << 30)
    blobs = BlobStore(home / "blobs", max_bytes=1 << 30)
    await blobs.open()
    runtime = Runtime()
    platform = Platform("linux", "amd64")
    async with ImageCatalog(docker_config=home / "no-config", platform=platform) as catalog:
        converter = Converter(runtime, disks, DISK_MIB)
        images = ImageService(catalog, blobs, converter, Resources(2, 512, DISK_MIB))
        yield Rig(home, runtime, images, captures, runtime.edits)
    await runtime.close()
    await database.close()


async def main(name: str, home: Path) -> None:
    """Say each line of progress, and at the end what was edited, as JSON."""

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    async with converting(home) as rig:
        await rig.get(name, say=say)
        say(json.dumps(rig.edits))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
