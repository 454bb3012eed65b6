"""Raw ext4 images from a folder, good as the immutable base under many sandboxes' overlays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aenv.images.commands import run
from aenv.images.requirements import require

_FEATURES = (
    "none",  # start from nothing: the host's mke2fs.conf must not decide what a guest's kernel can mount
    "has_journal",
    "ext_attr",
    "resize_inode",
    "dir_index",
    "filetype",
    "extent",
    "64bit",
    "flex_bg",
    "sparse_super",
    "large_file",
    "huge_file",
    "dir_nlink",
    "extra_isize",
    "metadata_csum",
)
_EXTENDED = (
    "lazy_itable_init=0",  # the guest has nothing left to initialise; the zeroes are holes of the file
    "lazy_journal_init=0",
    "nodiscard",
    "root_owner=0:0",
)
_JOURNAL_MIB = 16
"""A journal makes a disk that is captured under a running guest consistent; this small, it stays cheap."""

RECIPE = (*_FEATURES, *_EXTENDED, str(_JOURNAL_MIB))
"""Everything that decides the form of an image, for those who name images by how they are made."""


async def make_image(tree: Path | None, target: Path, *, size_mib: int, label: str) -> None:
    """Write `target`, a new sparse file of `size_mib` MiB: an ext4 file system with the content of `tree`.

    Without a tree it is empty.

    Owners, modes, devices, links and extended attributes are kept, so this needs root.

    Raises HostNotReady if mke2fs is missing or fails, for one because `size_mib` is too small.
    """
    require("mke2fs")
    await asyncio.to_thread(_allocate, target, size_mib << 20)
    await run(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-L", label),
            *("-J", f"size={_JOURNAL_MIB}", "-O", ",".join(_FEATURES), "-E", ",".join(_EXTENDED)),
            *(() if tree is None else ("-d", tree)),
            target,
        ]
    )


def _allocate(target: Path, size: int) -> None:
    with target.open("xb") as file:
        os.truncate(file.fileno(), size)
