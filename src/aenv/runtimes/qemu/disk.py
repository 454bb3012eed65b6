"""The disk of one instance: its chain of overlays, and the sealing of the topmost one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any, Final

from aenv.disks.chain import chain, fresh_overlay, read_chain, root_over
from aenv.disks.qcow2 import create_overlay
from aenv.errors import RuntimeFailure
from aenv.runtimes.qemu.blocking import to_the_end
from aenv.runtimes.qemu.layers import DiskLayers
from aenv.runtimes.qemu.process import VmProcess

_OVERLAY: Final = re.compile(r"disk-(\d+)\.qcow2")


class InstanceDisk:
    """Keeps the overlays an instance writes, in its folder, until the folder is removed.

    `inherited` is the disk it started from: a raw image, alone or under the sealed overlays of a capture.
    Overlays that are sealed here get hard links in captures; the instance keeps its own, so that it
    doesn't depend on captures that are deleted while it runs.
    """

    def __init__(self, folder: Path, size: int, inherited: DiskLayers) -> None:
        self.inherited = inherited
        self.sealed: list[Path] = []
        self._folder = folder
        self._size = size
        self._made = 0
        self._top = ""
        self._top_path = Path()
        self._next: tuple[str, Path] | None = None

    @classmethod
    async def adopt(cls, process: VmProcess, folder: Path, size: int) -> InstanceDisk:
        """The disk of a VM that an earlier server started: what QEMU has, not what that server had planned.

        Raises RuntimeFailure, LookupError, OSError.
        """
        stats: Any = await process.execute("query-blockstats")
        nodes: Any = await process.execute("query-named-block-nodes", {"flat": True})
        found = read_chain(stats, nodes)
        own = [path for path in found.values() if path.parent == folder]
        base, *overlays = reversed([path for path in found.values() if path.parent != folder])
        if not own:
            raise RuntimeFailure(f"the VM writes to none of the overlays in {folder}")
        disk = cls(folder, size, DiskLayers(base, tuple(overlays)))
        disk._top, disk._top_path = next(iter(found)), own[0]
        disk.sealed = own[:0:-1]
        for path in await asyncio.to_thread(lambda: list(folder.iterdir())):
            if match := _OVERLAY.fullmatch(path.name):
                disk._made = max(disk._made, int(match[1]))
                if path not in own:
                    await disk._drop(process, path)
        return disk

    async def _drop(self, process: VmProcess, path: Path) -> None:
        """Give up an overlay that was made ahead of a seal that did not come. Raises OSError."""
        with contextlib.suppress(RuntimeFailure):  # it wasn't opened yet
            await process.execute("blockdev-del", {"node-name": path.stem})
        await asyncio.to_thread(path.unlink, missing_ok=True)

    def create(self) -> dict[str, object]:
        """Make the first overlay and return the node of the whole chain. Blocking; raises OSError."""
        self._top, self._top_path = self._new_overlay()
        return chain(self._top, self._top_path, self.inherited.overlays, self.inherited.base)

    @property
    def top(self) -> str:
        """The name of the node that the guest's writes go to."""
        return self._top

    async def attach(self, process: VmProcess) -> None:
        """Put the chain in the place of the placeholder below `ROOT`. Raises RuntimeFailure, OSError."""
        node = await to_the_end(asyncio.to_thread(self.create))
        await process.execute("blockdev-add", node)
        await process.execute("blockdev-reopen", {"options": [root_over(self._top)]})

    async def prepare(self, process: VmProcess) -> None:
        """Open the next overlay ahead of a seal: the guest may still run. Idempotent.

        Raises RuntimeFailure, OSError.
        """
        await to_the_end(self._prepare(process))

    async def seal(self, process: VmProcess) -> None:
        """Make the overlay immutable and let the guest's writes go to the prepared one; the guest is stopped.

        Raises RuntimeFailure; nothing has changed then.
        """
        await to_the_end(self._seal(process))

    async def _prepare(self, process: VmProcess) -> None:
        if self._next is not None:
            return
        name, path = await asyncio.to_thread(self._new_overlay)
        try:
            await process.execute("blockdev-add", fresh_overlay(name, path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._next = (name, path)

    async def _seal(self, process: VmProcess) -> None:
        await self._prepare(process)
        assert self._next is not None  # noqa: S101 - just prepared
        name, path = self._next
        await process.execute("blockdev-snapshot", {"node": self._top, "overlay": name})
        self.sealed.append(self._top_path)
        self._top, self._top_path, self._next = name, path, None

    def _new_overlay(self) -> tuple[str, Path]:
        self._made += 1
        name = f"disk-{self._made}"
        path = self._folder / f"{name}.qcow2"
        create_overlay(path, self._size)
        return name, path
