"""The files of an image on this host, whether they lie in a folder or in an archive."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

from aenv.errors import ImageUnusable
from aenv.images.bytestream import BadArchive, ByteStream
from aenv.images.compression import compression_of
from aenv.images.decompress import BadCompression, decompressed
from aenv.images.download import Content, Pieces, in_thread
from aenv.images.tarball import HARD_LINK, REGULAR, SYMLINK, Entry, TarReader

_PIECE: Final = 1 << 20
_MOST_LINKS: Final = 8
_MOST_NAMES: Final = 16 << 20
"""Bytes of all names in an archive, which are held in memory; a root file system's are never all read."""


@dataclass(frozen=True)
class Part:
    """A part of a file, in bytes."""

    path: Path
    start: int
    size: int


class Files(Protocol):
    """Files by names such as `blobs/sha256/…`."""

    @property
    def path(self) -> Path:
        """The folder or the archive, for messages."""
        ...

    async def find(self, name: str) -> Part | None:
        """Where a file's content is, None if there is none. Raises ImageUnusable if the name leads out."""
        ...


async def read(part: Part, limit: int) -> bytes:
    """The content of a small file. Raises ImageUnusable if it has more than `limit` bytes."""
    if part.size > limit:
        raise ImageUnusable(f"{part.path} has {part.size} bytes where at most {limit} are right")
    async with content_of(part)(0) as (_, pieces):
        return b"".join([piece async for piece in pieces])


async def head(part: Part, size: int) -> bytes:
    """The first bytes."""
    return await read(Part(part.path, part.start, min(size, part.size)), size)


def content_of(part: Part) -> Content:
    """Opens the part at an offset."""

    @asynccontextmanager
    async def content(offset: int) -> AsyncIterator[tuple[int, Pieces]]:
        try:
            file = await in_thread(_open, part.path)
        except OSError as error:
            raise ImageUnusable(f"{part.path} can't be read: {error.strerror}") from error
        try:
            yield offset, _pieces(file, part, offset)
        finally:
            file.close()

    return content


async def _pieces(file: BinaryIO, part: Part, offset: int) -> AsyncIterator[bytes]:
    while offset < part.size:
        size = min(_PIECE, part.size - offset)
        try:
            piece = await in_thread(os.pread, file.fileno(), size, part.start + offset)
        except OSError as error:
            raise ImageUnusable(f"{part.path} can't be read: {error.strerror}") from error
        if not piece:
            raise ImageUnusable(f"{part.path} is cut short")
        yield piece
        offset += len(piece)


def _open(path: Path) -> BinaryIO:
    """A regular file; a pipe in its place would be waited for without end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ImageUnusable(f"{path} is not a regular file")
    return file


@dataclass(frozen=True)
class FolderFiles:
    """Files in a folder."""

    path: Path

    async def find(self, name: str) -> Part | None:
        """See `Files`."""
        return await asyncio.to_thread(self._find, name)

    def _find(self, name: str) -> Part | None:
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise ImageUnusable(f"{self.path}: {name!r} leads out of the folder")
        try:
            return Part(path, 0, path.stat().st_size)
        except (FileNotFoundError, NotADirectoryError):
            return None


@dataclass(frozen=True)
class TarFiles:
    """Files in a tar archive that isn't compressed."""

    path: Path
    parts: dict[str, Part]
    links: dict[str, str]
    """What links point to; older versions of docker write one in the place of a layer that is there twice."""

    def add(self, entry: Entry, part: Part) -> None:
        """One more entry of the archive, in place of an earlier one of that name."""
        name = plain_name(self.path, os.fsdecode(entry.name))
        self.parts.pop(name, None)
        self.links.pop(name, None)
        link = os.fsdecode(entry.link)
        if entry.kind == REGULAR:
            self.parts[name] = part
        elif entry.kind == HARD_LINK:
            self.links[name] = link
        elif entry.kind == SYMLINK:
            self.links[name] = link if link.startswith("/") else str(PurePosixPath(name).parent / link)

    async def find(self, name: str) -> Part | None:
        """See `Files`."""
        found = plain_name(self.path, name)
        for _ in range(_MOST_LINKS):
            if found not in self.links:
                return self.parts.get(found)
            found = plain_name(self.path, self.links[found])
        raise ImageUnusable(f"{self.path}: {name!r} is a link without end")


def list_archive(path: Path, unpacked: Path | None = None, most: int | None = None) -> TarFiles | None:
    """The files of the archive `path`; None if it has more than `most` entries. Blocking.

    A compressed one is read as it is, unless it was `unpacked` to another file; only then its parts can be
    read later. Raises ImageUnusable.
    """
    files = TarFiles(path, {}, {})
    place = unpacked or path
    try:
        with _open(place) as raw:
            stream = ByteStream(decompressed(raw, compression_of(place)))
            names = 0
            for number, entry in enumerate(TarReader(stream)):
                if number == most:
                    return None
                names += len(entry.name) + len(entry.link)
                if names > _MOST_NAMES:
                    raise BadArchive(f"its names have more than {_MOST_NAMES} bytes")
                files.add(entry, Part(place, stream.position, entry.stored))
    except (BadArchive, BadCompression) as error:
        raise ImageUnusable(f"{path} is no archive that can be read: {error}") from error
    except OSError as error:
        raise ImageUnusable(f"{path} can't be read: {error.strerror}") from error
    return files


def plain_name(path: Path, name: str) -> str:
    """The name without `.` and `..`. Raises ImageUnusable if it leads out of the archive `path`."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            if not parts:
                raise ImageUnusable(f"{path}: {name[:200]!r} leads out of the archive")
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)
