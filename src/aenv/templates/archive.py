"""Uploaded archives of COPY: which entries are meant, and where in the guest they go, as with Docker."""

from __future__ import annotations

import asyncio
import posixpath
import re
import tarfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from aenv.errors import InvalidRequest

MOST_ENTRIES = 1_000_000
"""In one archive."""

CHUNK = 256 << 10
"""Bytes of an archive that are sent on at a time."""

MOST_NAMES = 256 << 20
"""Characters of all names in one archive, which are held in memory."""

_MOST_HEADER = 1 << 20
"""Bytes of an extended header: `tarfile` takes all of it into memory, however little it is compressed."""

_MOST_GLOBAL = 100
"""Records in extended headers for the whole archive."""

_EXTENDED = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
_MAGIC = frozenset("*?[")
_KINDS = {
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.CONTTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
}


class BadArchive(InvalidRequest):
    """What was uploaded isn't an archive that can be used."""


class _Header(tarfile.TarInfo):
    """A header that is refused if what belongs to it is too large for the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _EXTENDED and found.size > _MOST_HEADER:
            raise BadArchive(f"a header of {found.size} bytes: more than {_MOST_HEADER} are refused")
        return found


@dataclass(frozen=True)
class Listing:
    """The names in an archive, relative and in normal form, and which of them are folders."""

    names: Mapping[str, bool]

    @cached_property
    def folders(self) -> frozenset[str]:
        """The entries that are folders, which perhaps show only by what is in them."""
        found = {name for name, is_folder in self.names.items() if is_folder}
        for name in self.names:
            above = posixpath.dirname(name)
            while above and above not in found:
                found.add(above)
                above = posixpath.dirname(above)
        return frozenset(found)


def listing(path: Path) -> Listing:
    """Read an archive, compressed or not, to its end. Blocking. Raises BadArchive."""
    names: dict[str, bool] = {}
    size = 0
    for info, _ in _open(path):
        names[_name(info.name)] = info.isdir()
        if info.islnk():
            _name(info.linkname)
        size += len(info.name)
        if len(names) > MOST_ENTRIES or size > MOST_NAMES:
            raise BadArchive(f"the archive has more than {MOST_ENTRIES} entries, or too long names")
    if not names:
        raise BadArchive("the archive is empty")
    return Listing(names)


def _open(path: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """The entries of an archive; the content of each can be read until the next."""
    try:
        with tarfile.open(path, "r|*", tarinfo=_Header, errors="surrogateescape") as archive:
            while (info := archive.next()) is not None:
                if info.type not in _KINDS and not info.issparse():
                    raise BadArchive(f"{info.name!r} is neither a file, a folder nor a link")
                if len(archive.pax_headers) > _MOST_GLOBAL:
                    raise BadArchive(f"more than {_MOST_GLOBAL} records are for all of the archive")
                yield info, archive
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
    except (tarfile.TarError, EOFError, ValueError, OSError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadArchive(f"what was uploaded is no tar archive, or a damaged one: {error}") from error


def _name(name: str) -> str:
    normal = posixpath.normpath(name)
    if normal.startswith(("/", "../")) or normal == "..":
        raise BadArchive(f"{name!r} leads out of the archive")
    return normal


def roots(names: Iterable[str], source: str) -> list[str]:
    """The entries that a source of COPY means: itself, or each that matches if it is a pattern."""
    pattern = posixpath.normpath(source.lstrip("/") or ".")
    if not _MAGIC & set(pattern):
        below = f"{pattern}/"
        found = [name for name in names if pattern in {".", name} or name.startswith(below)]
        return [pattern] if found else []
    matches = _matcher(pattern)
    matched: dict[str, None] = {}
    for name in sorted(names):
        for prefix in _prefixes(name):
            if prefix in matched:
                break
            if matches.fullmatch(prefix):
                matched[prefix] = None
                break
    return list(matched)


def _prefixes(name: str) -> Iterator[str]:
    """The folders above an entry, the topmost first, and the entry."""
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)
    yield name


def _matcher(pattern: str) -> re.Pattern[str]:
    """A pattern of a client as an expression: `*`, `?` and `[…]` in a name, `**` for any folders.

    What stands between two of `*`, or of `**`, is taken where it first comes and not tried elsewhere (atomic
    groups): a later place matches nothing more, and no pattern takes more than a moment.
    """
    sections = [""]
    for part in pattern.split("/"):
        if part == "**":
            sections.append("")
        else:
            sections[-1] += _name_matcher(part) + "/"
    if len(sections) > 1 and not sections[-1]:
        sections[-1] = "[^/]+/"
    first, *others = sections
    middle = "".join(f"(?>(?:[^/]+/)*?{section})" for section in others[:-1] if section)
    last = "".join(f"(?:[^/]+/)*{section}" for section in others[-1:])
    try:
        return re.compile((first + middle + last).removesuffix("/"), re.DOTALL)
    except re.error as error:
        raise InvalidRequest(f"COPY: {pattern!r} is no pattern: {error}") from error


def _name_matcher(part: str) -> str:
    """The same for what stands between two slashes."""
    pieces, position = [""], 0
    while position < len(part):
        character = part[position]
        end = part.find("]", position + 2) if character == "[" else -1
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif end > 0:
            inner = part[position + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            pieces[-1] += f"(?!/)[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            position = end
        else:
            pieces[-1] += re.escape(character)
        position += 1
    first, *others = pieces
    middle = "".join(f"(?>[^/]*?{piece})" for piece in others[:-1] if piece)
    return first + middle + "".join(f"[^/]*{piece}" for piece in others[-1:])


@dataclass(frozen=True)
class Plan:
    """Where the entries below each root go, as absolute paths."""

    targets: Mapping[str, str]

    def target(self, name: str) -> str | None:
        """Where an entry goes; None if it isn't meant."""
        if (whole := self.targets.get(".")) is not None:
            return whole if name == "." else posixpath.join(whole, name)
        for prefix in _prefixes(name):
            if (target := self.targets.get(prefix)) is not None:
                return posixpath.join(target, name[len(prefix) + 1 :]) if prefix != name else target
        return None


def plan(entries: Listing, source: str, destination: str, *, into: bool) -> Plan:
    """What COPY does: a folder's content goes into the destination, a file becomes it, or goes into it.

    `into` says that the destination is a folder; one that ends with a slash always is. Raises BadArchive.
    """
    found = roots(entries.names, source)
    if not found:
        raise BadArchive(f"there is nothing in the archive that {source!r} names")
    into = into or destination.endswith("/") or len(found) > 1
    folder = destination.rstrip("/") or "/"
    return Plan(
        {
            root: folder
            if root == "." or root in entries.folders or not into
            else posixpath.join(folder, posixpath.basename(root))
            for root in found
        }
    )


def renamed(path: Path, where: Plan) -> Iterator[bytes]:
    """A tar archive with the planned entries, renamed, in pieces. Blocking. Raises BadArchive."""
    batch = bytearray()
    for info, archive in _open(path):
        target = where.target(_name(info.name))
        if target is None:
            continue
        entry = tarfile.TarInfo(target.lstrip("/") or ".")
        entry.mode, entry.mtime, entry.linkname = info.mode, info.mtime, info.linkname
        entry.type = info.type if info.isdir() or info.issym() or info.islnk() else tarfile.REGTYPE
        if info.islnk():
            linked = where.target(_name(info.linkname))
            if linked is None:
                raise BadArchive(f"{info.name!r} is a hard link to what isn't copied")
            entry.linkname = linked.lstrip("/")
        content = archive.extractfile(info) if info.isreg() else None
        entry.size = 0 if content is None else info.size
        batch += entry.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")
        if content is not None:
            while piece := content.read(CHUNK):
                batch += piece
                if len(batch) >= CHUNK:
                    yield bytes(batch)
                    batch.clear()
            batch += bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(batch) + bytes(2 * tarfile.BLOCKSIZE)


async def in_pieces(pieces: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Pieces that are made in a thread, one at a time."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
