"""The disk of one instance: its chain of overlays, the sealing of the topmost one, merging of those below."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from aenv.disks.chain import chain, fresh_overlay, read_chain, root_over, sealed_chain, sealed_overlay
from aenv.disks.merge import merge
from aenv.disks.qcow2 import create_overlay
from aenv.errors import RuntimeFailure, VmmUnresponsive
from aenv.runtimes.qemu.compaction import Workshop, overlays_to_merge
from aenv.runtimes.qemu.layers import DiskLayers
from aenv.runtimes.qemu.process import VmProcess
from aenv.tasks import finish

log = structlog.get_logger()

_OVERLAY: Final = re.compile(r"disk-(\d+)\.qcow2")


@dataclass(frozen=True)
class Overlay:
    """An overlay of the instance's own: its file, and the name of its node."""

    node: str
    path: Path


@dataclass(frozen=True)
class Merged:
    """An overlay that holds what those from `start` to before `end` do, counted from the lowest of all."""

    overlay: Overlay
    start: int
    end: int


class InstanceDisk:
    """Keeps the overlays an instance writes, in its folder, until the folder is removed.

    `inherited` is the disk it started from: a raw image, alone or under the sealed overlays of a capture.
    Overlays that are sealed here get hard links in captures; the instance keeps its own, so that it
    doesn't depend on captures that are deleted while it runs.
    """

    def __init__(self, folder: Path, size: int, inherited: DiskLayers) -> None:
        self.inherited = inherited
        self._sealed: list[Overlay] = []
        self._folder = folder
        self._size = size
        self._made = 0
        self._top = Overlay("", Path())
        self._next: Overlay | None = None
        self._unsure = False
        """Whether QEMU, which didn't answer in time, may have put the next overlay on top all the same."""

    @classmethod
    async def adopt(cls, process: VmProcess, folder: Path, size: int) -> InstanceDisk:
        """The disk of a VM that an earlier server started: what QEMU has, not what that server had planned.

        Raises RuntimeFailure, LookupError, OSError.
        """
        found = await _chain(process)
        own = [Overlay(node, path) for node, path in found.items() if path.parent == folder]
        base, *overlays = reversed([path for path in found.values() if path.parent != folder])
        if not own:
            raise RuntimeFailure(f"the VM writes to none of the overlays in {folder}")
        disk = cls(folder, size, DiskLayers(base, tuple(overlays)))
        disk._top, *sealed = own
        disk._sealed = sealed[::-1]
        matches = map(_OVERLAY.fullmatch, await asyncio.to_thread(os.listdir, folder))
        numbers = sorted((int(match[1]) for match in matches if match), reverse=True)
        disk._made = max(numbers, default=0)
        known = {overlay.path for overlay in own}
        await disk._drop(process, [path for path in map(disk._path, numbers) if path not in known])
        return disk

    async def _drop(self, process: VmProcess, paths: list[Path]) -> None:
        """Give up overlays that the disk doesn't stand on, or not any more. Raises RuntimeFailure, OSError.

        Some may stand on others, nearly always on older ones. One that can't be closed is left.
        """
        left: list[Path] = []
        while paths != left:
            left, paths = paths, []
            for path in left:
                if await _forget(process, path.stem):
                    await asyncio.to_thread(path.unlink, missing_ok=True)
                else:
                    paths.append(path)

    def create(self) -> dict[str, object]:
        """Make the first overlay and return the node of the whole chain. Blocking; raises OSError."""
        self._top = self._new_name()
        create_overlay(self._top.path, self._size)
        return chain(self._top.node, self._top.path, self.inherited.overlays, self.inherited.base)

    @property
    def top(self) -> str:
        """The name of the node that the guest's writes go to."""
        return self._top.node

    @property
    def sealed(self) -> tuple[Path, ...]:
        """The instance's own immutable overlays, lowest first: they stand on those it inherited."""
        return tuple(overlay.path for overlay in self._sealed)

    async def attach(self, process: VmProcess) -> None:
        """Put the chain in the place of the placeholder below `ROOT`. Raises RuntimeFailure, OSError."""
        node = await finish(asyncio.to_thread(self.create))
        await process.execute("blockdev-add", node)
        await process.execute("blockdev-reopen", {"options": [root_over(self._top.node)]})

    async def prepare(self, process: VmProcess) -> None:
        """Open the next overlay ahead of a seal: the guest may still run. Idempotent.

        Raises RuntimeFailure, OSError.
        """
        await finish(self._prepare(process))

    async def seal(self, process: VmProcess) -> None:
        """Make the overlay immutable and let the guest's writes go to the prepared one; the guest is stopped.

        Raises RuntimeFailure; nothing has changed then.
        """
        await finish(self._seal(process))

    async def merge(self, workshop: Workshop) -> Merged | None:
        """Write what the disk stands on into fewer overlays, if it stands on many; for `exchange`.

        The guest may run, and more overlays may be sealed meanwhile. Raises RuntimeFailure, OSError; no file
        is left then.
        """
        below = (*self.inherited.overlays, *self.sealed)
        start = await asyncio.to_thread(overlays_to_merge, below)
        if start is None:
            return None
        overlay = self._new_name()
        await workshop.run(lambda go_on: merge(below[start:], overlay.path, go_on))
        return Merged(overlay, start, len(below))

    async def exchange(self, process: VmProcess, merged: Merged) -> None:
        """Let the disk stand on the merged overlay instead of those it was made from.

        Nothing was exchanged since it was made. Raises RuntimeFailure; the disk is then as before, and the
        merged overlay removed.
        """
        await finish(self._exchange(process, merged))

    async def _exchange(self, process: VmProcess, merged: Merged) -> None:
        await self._make_sure(process)
        inherited = self.inherited.overlays
        first, last = (max(0, end - len(inherited)) for end in (merged.start, merged.end))
        kept, gone, above = self._sealed[:first], self._sealed[first:last], self._sealed[last:]
        kept_inherited = DiskLayers(self.inherited.base, inherited[: merged.start])
        below = kept[-1].node if kept else sealed_chain(kept_inherited.overlays, kept_inherited.base)
        overlay = merged.overlay
        try:
            node = {**sealed_overlay(overlay.path, below), "node-name": overlay.node}
            await process.execute("blockdev-add", node)
            await process.execute("blockdev-reopen", {"options": [self._over(above, overlay.node)]})
        except BaseException:
            # What QEMU didn't answer in time it may have done all the same: then the file is in use.
            if await _forget(process, overlay.node):
                overlay.path.unlink(missing_ok=True)
            raise
        self.inherited = kept_inherited
        self._sealed = [*kept, overlay, *above]
        for old in reversed(gone):
            await _forget(process, old.node)
            old.path.unlink(missing_ok=True)

    def _over(self, above: list[Overlay], below: str) -> dict[str, object]:
        """The lowest overlay that isn't merged as it shall be: over the node `below`."""
        if above:
            return {**sealed_overlay(above[0].path, below), "node-name": above[0].node}
        return {**fresh_overlay(self._top.node, self._top.path), "backing": below}

    async def _prepare(self, process: VmProcess) -> None:
        await self._make_sure(process)
        if self._next is not None:
            return
        overlay = self._new_name()
        await asyncio.to_thread(create_overlay, overlay.path, self._size)
        try:
            await process.execute("blockdev-add", fresh_overlay(overlay.node, overlay.path))
        except BaseException:
            overlay.path.unlink(missing_ok=True)
            raise
        self._next = overlay

    async def _seal(self, process: VmProcess) -> None:
        await self._prepare(process)
        assert self._next is not None  # noqa: S101 - just prepared
        try:
            await process.execute("blockdev-snapshot", {"node": self._top.node, "overlay": self._next.node})
        except VmmUnresponsive:
            self._unsure = True
            raise
        self._put_on_top(self._next)

    async def _make_sure(self, process: VmProcess) -> None:
        """Find out whether the last seal, which QEMU didn't answer in time, was done later."""
        if not self._unsure:
            return
        top = next(iter(await _chain(process)))
        if self._next is not None and self._next.node == top:
            self._put_on_top(self._next)
        self._unsure = False

    def _put_on_top(self, overlay: Overlay) -> None:
        self._sealed.append(self._top)
        self._top, self._next = overlay, None

    def _new_name(self) -> Overlay:
        self._made += 1
        path = self._path(self._made)
        return Overlay(path.stem, path)

    def _path(self, number: int) -> Path:
        return self._folder / f"disk-{number}.qcow2"


async def _chain(process: VmProcess) -> dict[str, Path]:
    """The disk's nodes as QEMU has them, the topmost first; see `read_chain`. Raises RuntimeFailure."""
    stats: Any = await process.execute("query-blockstats")
    nodes: Any = await process.execute("query-named-block-nodes", {"flat": True})
    return read_chain(stats, nodes)


async def _forget(process: VmProcess, node: str) -> bool:
    """Close a node that nothing stands on; whether it isn't open any more, or never was.

    One that can't be closed costs a descriptor.
    """
    try:
        await process.execute("blockdev-del", {"node-name": node})
    except RuntimeFailure as error:
        if not await _is_open(process, node):
            return True
        log.warning("a disk overlay can't be closed", node=node, error=str(error))
        return False
    return True


async def _is_open(process: VmProcess, node: str) -> bool:
    """Whether QEMU has a node of this name; True if it doesn't say so."""
    try:
        nodes: Any = await process.execute("query-named-block-nodes", {"flat": True})
    except RuntimeFailure:
        return True
    return any(each["node-name"] == node for each in nodes)
