"""Locks between processes, for work that two commands may start at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

_POLL = 0.2


@asynccontextmanager
async def exclusive(path: Path, on_wait: Callable[[str], None] | None = None) -> AsyncIterator[None]:
    """Hold an exclusive lock on the file `path` (made if missing); the kernel frees it if this process dies.

    The file stays: removing it would let a third process lock a file that the second one no longer sees.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while not _try_lock(descriptor):
            if on_wait is not None and not told:
                on_wait(f"waiting for another process that holds {path}")
                told = True
            await asyncio.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
