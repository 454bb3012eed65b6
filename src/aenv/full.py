"""Telling a full disk from other trouble, wherever something is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from aenv.errors import AenvError, NoSpace, StorageFailure

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LEAST: Final = 1 << 20
"""With fewer free bytes than this, whatever failed to write failed for want of them."""


def free_bytes(folder: Path) -> int:
    """How much this process can write to the file system of `folder`. Raises OSError."""
    found = os.statvfs(folder)
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


def write_failure(what: str, folder: Path, error: Exception, otherwise: type[AenvError]) -> AenvError:
    """The error to raise when writing to `folder` failed with `error`: `NoSpace` if the disk is full.

    An engine's own message may not say so, hence the look at the disk. A disk that can't be written for
    another reason is a `StorageFailure`, anything else is `otherwise`.
    """
    if isinstance(error, NoSpace | StorageFailure):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EROFS or _is_read_only(folder):
        return StorageFailure(f"{what}: the file system of {folder} is read-only")
    if number in _FULL or _is_full(folder):
        return NoSpace(f"{what}: the host's disk is full; make room on the file system of {folder}")
    return (StorageFailure if number == errno.EIO else otherwise)(f"{what}: {error}")


def _is_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _is_full(folder: Path) -> bool:
    try:
        return free_bytes(folder) < _LEAST
    except OSError:
        return False
