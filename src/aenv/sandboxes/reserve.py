"""Room on the disk that is kept free for pauses: a full disk must not keep a sandbox from being saved."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from aenv.full import free_bytes

log = structlog.get_logger()

_SPARE = 2
"""The reserve is made again when so many times its size is free."""

_SHORT = 4
"""Less than its size divided by this is too little for a pause beside what others write."""


class Reserve:
    """A file of `size` bytes that holds the room. With a size of 0 there is none."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    async def make(self) -> None:
        """Take the room, if there is enough and it isn't taken yet. Never raises."""
        await asyncio.to_thread(self._make)

    async def release(self) -> None:
        """Give the room to whoever writes next. Idempotent; never raises."""
        if await asyncio.to_thread(self._release):
            log.warning("the disk is full: the reserve is given up", bytes=self._size)

    def is_short(self) -> bool:
        """Whether so little is free that a pause may need the reserve, or nobody can tell. Blocking."""
        return self._free() < self._size // _SHORT

    def has_room(self, need: int) -> bool:
        """Whether so many bytes can be written, and as much as the reserve be left. Blocking."""
        return self._free() >= need + self._size

    def _free(self) -> int:
        try:
            return free_bytes(self._path.parent)
        except OSError as error:
            log.error("the disk can't be asked how much is free", error=str(error))
            return -1

    def _make(self) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size == self._size:
                return
            self._path.unlink(missing_ok=True)
            if self._size == 0 or free_bytes(self._path.parent) < _SPARE * self._size:
                return
            self._write()
        except OSError as error:
            log.warning("there is no room for a reserve", bytes=self._size, error=str(error))

    def _write(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size)
        except BaseException:
            self._path.unlink()
            raise
        finally:
            os.close(descriptor)

    def _release(self) -> bool:
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.error("the reserve can't be given up", error=str(error))
            return False
        return True
