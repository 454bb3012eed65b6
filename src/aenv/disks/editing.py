"""Changing the files of a disk that no VM has open, from the server's side."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from aenv.disks import editor
from aenv.disks.edits import Edit
from aenv.errors import AenvError, HostNotReady, InvalidRequest, RuntimeFailure
from aenv.full import write_failure
from aenv.images.commands import run
from aenv.images.ext4 import make_image
from aenv.images.requirements import require

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2


async def edit_new_disk(
    target: Path, size_mib: int, edits: Sequence[Edit], say: Callable[[str], None]
) -> None:
    """Make `target`, a raw disk of `size_mib` MiB with an empty ext4 file system, and apply `edits` to it.

    Raises as `edit_overlay` does.
    """
    try:
        await make_image(None, target, size_mib=size_mib, label="aenv-root")
        await asyncio.to_thread(_release_unwritten, target)
    except OSError as error:
        raise _unwritable(target, error) from error
    if edits:
        await _run([], target, size_mib, edits, say)


async def edit_overlay(
    target: Path,
    below: Sequence[Path],
    size_mib: int,
    edits: Sequence[Edit],
    say: Callable[[str], None],
) -> None:
    """Apply `edits` to a disk; the overlay `target` gets what changes, what is `below` is only read.

    That is a raw base and overlays, lowest first. The file system grows to `size_mib`. Needs root. Nothing of
    it goes on when this ends, also if it is cancelled or this program killed; the caller removes `target` if
    it fails.

    Raises InvalidRequest if an edit was refused or doesn't fit the disk, HostNotReady for a missing tool or
    device, NoSpace, RuntimeFailure.
    """
    await _run([str(path) for path in below], target, size_mib, edits, say)


async def _run(
    below: list[str], target: Path, size_mib: int, edits: Sequence[Edit], say: Callable[[str], None]
) -> None:
    require("qemu-storage-daemon", "resize2fs", "unshare", "setpriv")
    if os.geteuid() != 0:
        raise HostNotReady("images can be unpacked only by root: it takes mounts")
    request = {
        "below": below,
        "target": str(target),
        "size": size_mib << 20,
        "edits": [
            {
                "function": edit.function,
                "arguments": dict(edit.arguments),
                "files": {name: str(path) for name, path in edit.files.items()},
            }
            for edit in edits
        ],
    }
    command = [sys.executable, "-P", "-m", editor.__name__, json.dumps(request)]
    output = await run(command, on_line=say, confined=True)
    answer: dict[str, Any] = json.loads(output)
    if answer["failed"] is not None:
        index = answer["edit"]
        name = "" if index is None else edits[index].name
        raise _error(answer, f"{name}: " if name else "", target, size_mib)


def _error(answer: dict[str, Any], where: str, target: Path, size_mib: int) -> AenvError:
    kind, message = answer["failed"], where + answer["message"]
    if kind == editor.REFUSED:
        return InvalidRequest(message)
    if kind == editor.HOST:
        return HostNotReady(message)
    if kind == editor.FULL:
        return InvalidRequest(f"{where}it doesn't fit a disk of {size_mib} MiB")
    if kind == editor.WRITING:
        error = OSError(message) if answer["errno"] is None else OSError(answer["errno"], message)
        return _unwritable(target, error)
    return RuntimeFailure(f"a disk couldn't be edited: {message}")


def _unwritable(target: Path, error: OSError) -> AenvError:
    return write_failure(f"the disk {target} can't be written", target.parent, error, RuntimeFailure)


def _release_unwritten(path: Path) -> None:
    """Give back the space that mke2fs took for what it only meant to be zeros. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        at = 0
        while at < size:
            try:
                data = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                data = size
            mode = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
            if data > at and libc.fallocate(
                descriptor, mode, ctypes.c_longlong(at), ctypes.c_longlong(data - at)
            ):
                return  # the file system can't: then it takes a little more
            at = os.lseek(descriptor, data, os.SEEK_HOLE) if data < size else size
    finally:
        os.close(descriptor)
