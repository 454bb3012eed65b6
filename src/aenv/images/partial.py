"""A file that isn't whole yet: what is written is hashed on the way, and only right content gets a name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aenv.durable import sync
from aenv.errors import ImageUnusable

_PIECE: Final = 1 << 20


class WrongContent(ImageUnusable):
    """What came isn't what its digest or its size says."""


class PartialFile:
    """A blob while it is written. Its methods block; one thread at a time may call them."""

    def __init__(self, path: Path, algorithm: str = "sha256") -> None:
        """Touches nothing yet; `open` does."""
        self.path = path
        self.size = 0
        """Bytes that are in the file and in its digest."""
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm)
        self._descriptor = -1

    def open(self) -> None:
        """Open the file, made if missing, behind what an earlier attempt has written. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        while piece := os.read(self._descriptor, _PIECE):
            self._hash.update(piece)
            self.size += len(piece)

    @property
    def digest(self) -> str:
        """Of what is in the file now."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"

    def write(self, pieces: Sequence[bytes]) -> None:
        """Add `pieces` at the end, as far as there is room. Raises OSError."""
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.write(self._descriptor, view)
                self._hash.update(view[:written])
                self.size += written
                view = view[written:]

    def restart(self) -> None:
        """Forget everything. Raises OSError."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._hash = hashlib.new(self._algorithm)
        self.size = 0

    def publish(self, target: Path) -> None:
        """Give the file its name and make both durable. Raises OSError."""
        os.fsync(self._descriptor)
        self.path.rename(target)
        sync(target.parent)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; what is in it stays. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
