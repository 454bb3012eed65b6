"""Files of this machine as tar archives that are made while they are sent."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aenv.cli.errors import CommandError

CHUNK = 1 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class Upload:
    """What is sent, as often as it is wanted, and the hash by which the server knows it."""

    files_hash: str
    size: int
    pieces: Callable[[], Iterator[bytes]]
    """Blocking. Raises CommandError if a file isn't as it was."""


@dataclass(frozen=True)
class Member:
    """One file, folder or symlink that goes into an archive by this name."""

    name: str
    path: Path
    status: os.stat_result
    target: str = ""
    """Of a symlink."""

    @classmethod
    def of(cls, path: Path, name: str) -> Member | None:
        """What is at `path`; None if archives hold nothing of this kind. Raises OSError."""
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            return cls(name, path, status, str(path.readlink()))
        return cls(name, path, status) if kind in {stat.S_IFREG, stat.S_IFDIR} else None

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0

    def header(self) -> bytes:
        """Its header in a tar archive. Owners stay here: what a client has is nobody's in a guest."""
        info = tarfile.TarInfo(self.name)
        info.mode, info.mtime = stat.S_IMODE(self.status.st_mode), int(self.status.st_mtime)
        info.size = self.size
        if stat.S_ISDIR(self.status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(self.status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, self.target
        return info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")

    def content(self) -> Iterator[bytes]:
        """Its bytes. Blocking. Raises CommandError if there aren't as many as there were."""
        left = self.size
        if not left:
            return
        with self.path.open("rb") as file:
            while left:
                piece = file.read(min(CHUNK, left))
                if not piece:
                    raise CommandError(f"{self.path} became shorter while it was read")
                left -= len(piece)
                yield piece


def upload_of_file(path: Path) -> Upload:
    """A file as it is. Blocking."""
    member = Member.of(path.resolve(), path.name)
    if member is None or not stat.S_ISREG(member.status.st_mode):
        raise CommandError(f"{path} is neither a file nor a folder")
    hashed = hashlib.sha256()
    for piece in member.content():
        hashed.update(piece)
    return Upload(hashed.hexdigest(), member.size, member.content)


def upload_of_members(members: Sequence[Member], about: str = "") -> Upload:
    """An archive of files. Its hash is over `about` and what they are, not their times. Blocking."""
    hashed = hashlib.sha256(about.encode())
    size = 2 * tarfile.BLOCKSIZE
    for member in members:
        what = (member.name, member.target, oct(member.status.st_mode), str(member.size))
        hashed.update("\0".join(("", *what, "")).encode(errors="surrogateescape"))
        for piece in member.content():
            hashed.update(piece)
        size += len(member.header()) + member.size + _padding(member.size)
    return Upload(hashed.hexdigest(), size, partial(_packed, members))


def members_of_folder(folder: Path) -> Sequence[Member]:
    """All that is in a folder, by names relative to it. Blocking. Raises OSError."""
    return [*_walk(folder, "")]


def _walk(folder: Path, prefix: str) -> Iterator[Member]:
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if (member := Member.of(path, name)) is not None:
            yield member
            if stat.S_ISDIR(member.status.st_mode):
                yield from _walk(path, name + "/")


def _packed(members: Iterable[Member]) -> Iterator[bytes]:
    batch = bytearray()
    for member in members:
        batch += member.header()
        for piece in member.content():
            batch += piece
            if len(batch) >= CHUNK:
                yield bytes(batch)
                batch.clear()
        batch += bytes(_padding(member.size))
    yield bytes(batch) + bytes(2 * tarfile.BLOCKSIZE)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
