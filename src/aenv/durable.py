"""Files that appear whole or not at all, and writing that survives a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file's content, or the names in a folder, to the device. Blocking. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600, survive: bool = True) -> None:
    """Put a file with this content at `path` in one step, in place of one that is there.

    It never has another mode, not even for a moment. With `survive` it is there after a power cut; without,
    it is for as long as the host runs. Blocking. On failure, on a full disk for example, nothing has changed;
    raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            if survive:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if survive:
        sync(path.parent)
