"""Temporary folders beside what is being made, so that a finished thing is renamed into place."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aenv.durable import sync

_PREFIX = ".tmp-"


@contextmanager
def temporary(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, only for its owner, removed with everything in it at the end."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def scratch_folder(parent: Path) -> AsyncIterator[Path]:
    """`temporary` for coroutines: what it holds may be large, so it is removed in a thread."""
    path = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=_PREFIX, dir=parent))
    try:
        yield path
    finally:
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove the temporary folders of builds that were killed. Only for the holder of the folder's lock."""
    for path in parent.glob(f"{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def publish(made: Path, target: Path) -> None:
    """Move a finished file or folder to `target`, in place of what is there, and make the name durable."""
    if target.is_dir():
        shutil.rmtree(target)
    made.replace(target)
    sync(target.parent)
