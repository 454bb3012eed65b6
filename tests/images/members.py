"""Members of archives, and what is asked of trees, in few words."""

from __future__ import annotations

import hashlib
import tarfile
from typing import Any

from tests.images.builder import entry
from tests.images.trees import Tree


def folder(name: str, **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A folder."""
    settings: dict[str, Any] = {"kind": tarfile.DIRTYPE, "mode": 0o755} | changes
    return entry(name, **settings)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """A symbolic link."""
    return entry(name, kind=tarfile.SYMTYPE, link=target, mode=0o777)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Another name of a file."""
    return entry(name, kind=tarfile.LNKTYPE, link=target)


def names(found: Tree) -> set[str]:
    """All paths but the root."""
    return set(found) - {"."}


def content(found: Tree, name: str) -> str:
    """The digest of a file."""
    return str(found[name]["content"])


def sha256(data: bytes) -> str:
    """In hex digits."""
    return hashlib.sha256(data).hexdigest()
