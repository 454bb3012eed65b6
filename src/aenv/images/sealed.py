"""Folders whose files are recorded with their hashes, so that damage is seen before it is used."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from aenv.durable import sync

_MANIFEST = "manifest.json"


class Sealed(BaseModel):
    """The manifest of a folder: the kernel version its files belong to, and each file's SHA-256, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    files: dict[str, str]


def seal(folder: Path, version: str, names: list[str]) -> None:
    """Record the files `names` of `folder` in this order, and wait until they and the record are on disk."""
    sealed = Sealed(version=version, files={name: _digest(folder / name) for name in names})
    (folder / _MANIFEST).write_text(sealed.model_dump_json(indent=2) + "\n")
    for name in (*names, _MANIFEST):
        sync(folder / name)
    sync(folder)


def read_sealed(folder: Path) -> Sealed | None:
    """The manifest of `folder`, or None if it is missing or a file isn't as it was recorded."""
    try:
        sealed = Sealed.model_validate_json((folder / _MANIFEST).read_bytes())
        intact = all(_digest(folder / name) == digest for name, digest in sealed.files.items())
    except (OSError, ValidationError):
        return None
    return sealed if intact else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
