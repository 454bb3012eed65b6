"""Tar archives, read entry by entry: what images' layers need, as fast as Python reads headers.

`tarfile` makes several objects for each header and keeps them all; layers have hundreds of thousands of
entries. Understood are the forms ustar, pax, GNU and the old V7, sparse files in all of their forms.

Sources of the formats: POSIX.1-2017 `pax` (ustar and pax interchange format), and the GNU tar manual, "Basic
Tar Format" and "Storing Sparse Files".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aenv.images.bytestream import BadArchive, ByteStream

BLOCK: Final = 512

REGULAR: Final = b"0"
HARD_LINK: Final = b"1"
SYMLINK: Final = b"2"
CHARACTER_DEVICE: Final = b"3"
BLOCK_DEVICE: Final = b"4"
FOLDER: Final = b"5"
FIFO: Final = b"6"

_PAX: Final = b"x"
_PAX_GLOBAL: Final = b"g"
_GNU_NAME: Final = b"L"
_GNU_LINK: Final = b"K"
_GNU_SPARSE: Final = b"S"
_GNU_LABEL: Final = b"V"

_FILES: Final = frozenset({b"\0", REGULAR, b"7", _GNU_SPARSE})
_WITHOUT_DATA: Final = frozenset({HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, FOLDER, FIFO})
_MOST_HEADER: Final = 16 << 20
"""Bytes of all extended headers of one entry, and of all for the whole archive: names and attributes are far
smaller, and they are held in memory."""
_MOST_SPARSE: Final = 1 << 20
"""Data regions of one sparse file."""
_MOST_MAJOR: Final = 1 << 12
_MOST_MINOR: Final = 1 << 20
_MOST_SIZE: Final = 1 << 62
_NANO: Final = 1_000_000_000
_XATTR: Final = b"SCHILY.xattr."
_ZEROS: Final = bytes(BLOCK)


@dataclass(slots=True)
class Entry:
    """One file, folder, link or device. Names are bytes as they stand in the archive."""

    name: bytes
    kind: bytes
    """One of the constants above."""
    mode: int
    uid: int
    gid: int
    mtime: int
    """Nanoseconds since 1970."""
    atime: int | None
    link: bytes
    device: tuple[int, int]
    size: int
    """Bytes of the file; more than are stored, if it is sparse."""
    stored: int
    """Bytes of data that follow in the stream."""
    sparse: tuple[tuple[int, int], ...] | None
    """Offset and length of each region whose data is stored, one behind the other; the rest is holes."""
    xattrs: dict[bytes, bytes]


_NO_XATTRS: Final[dict[bytes, bytes]] = {}


class TarReader:
    """Iterates over the entries of an archive.

    An entry's `stored` bytes are read from `stream`, as many as are wanted, before the next entry is.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._global: dict[bytes, bytes] = {}
        self._global_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        """Each entry. Raises BadArchive."""
        stream = self.stream
        records, regions, taken = self._global.copy(), _Regions(), 0
        # Two blocks of zeros are the end; some programs just stop.
        while not stream.at_end() and (header := stream.read(BLOCK)) != _ZEROS:
            _check(header)
            kind = header[156:157]
            if kind == _PAX:
                content = self._extended(header, taken)
                taken += len(content)
                records.update(_pax_records(content, regions))
            elif kind == _PAX_GLOBAL:
                content = self._extended(header, self._global_bytes)
                self._global_bytes += len(content)
                self._global.update(_pax_records(content, _Regions()))
                records = self._global | records
            elif kind in (_GNU_NAME, _GNU_LINK):
                value = self._extended(header, taken).partition(b"\0")[0]
                records[b"path" if kind == _GNU_NAME else b"linkpath"] = value
            elif kind == _GNU_LABEL:
                stream.skip(_padded(_number(header[124:136])))
            else:
                start = stream.position
                entry, end = self._entry(header, kind, records, regions.found)
                yield entry
                stream.skip(end - (stream.position - start))
                records, regions, taken = self._global.copy(), _Regions(), 0

    def _extended(self, header: bytes, before: int) -> bytes:
        """The content of an entry that says something about the next one, or all; `before` went before it."""
        size = _number(header[124:136])
        if before + size > _MOST_HEADER:
            raise BadArchive(f"a header of {before + size} bytes: more than {_MOST_HEADER} are refused")
        return self.stream.read(_padded(size))[:size]

    def _entry(
        self, header: bytes, kind: bytes, records: dict[bytes, bytes], regions: list[tuple[int, int]]
    ) -> tuple[Entry, int]:
        """The entry of a header, and how many bytes follow the header; of these some may have been read."""
        name = header[:100].partition(b"\0")[0]
        link = header[157:257].partition(b"\0")[0]
        if header[257:263] == b"ustar\0" and header[345]:
            name = header[345:500].partition(b"\0")[0] + b"/" + name
        size = _number(header[124:136])
        mtime, atime = _number(header[136:148]) * _NANO, None
        uid, gid = _number(header[108:116]), _number(header[116:124])
        xattrs = _NO_XATTRS
        real = None
        if records:
            name, link = records.get(b"path", name), records.get(b"linkpath", link)
            size = _decimal(records, b"size", size)
            uid, gid = _decimal(records, b"uid", uid), _decimal(records, b"gid", gid)
            mtime = _time(records.get(b"mtime")) if b"mtime" in records else mtime
            atime = _time(records.get(b"atime")) if b"atime" in records else None
            xattrs = {
                key.removeprefix(_XATTR): value for key, value in records.items() if key.startswith(_XATTR)
            }
            name = records.get(b"GNU.sparse.name", name)
            real = _decimal(records, b"GNU.sparse.size", _decimal(records, b"GNU.sparse.realsize", -1))
        if not 0 <= size <= _MOST_SIZE:
            raise BadArchive(f"{name!r} has a size of {size} bytes")
        if b"\0" in name or b"\0" in link:
            raise BadArchive(f"a name has a zero byte in it: {name!r}")
        kind_of = _kind_of(kind, name)
        if kind_of in _WITHOUT_DATA:
            size = 0
        entry = Entry(
            name=name,
            kind=kind_of,
            mode=_number(header[100:108]) & 0o7777,
            uid=uid,
            gid=gid,
            mtime=mtime,
            atime=atime,
            link=link,
            device=(0, 0),
            size=size,
            stored=size,
            sparse=None,
            xattrs=xattrs,
        )
        end = _padded(size)
        if kind in (CHARACTER_DEVICE, BLOCK_DEVICE):
            entry.device = _device(header)
        elif kind == _GNU_SPARSE:
            end += self._old_sparse(header, entry)
        elif real is not None and real >= 0 and kind_of == REGULAR:
            self._pax_sparse(records, entry, real, regions)
        return entry, end

    def _old_sparse(self, header: bytes, entry: Entry) -> int:
        """The map of GNU's first form: some regions in the header, more in blocks, of so many bytes."""
        entry.size = _number(header[483:495])
        found = _old_regions(header[386:482])
        more, taken = header[482], 0
        while more:
            block = self.stream.read(BLOCK)
            taken += BLOCK
            found += _old_regions(block[:504])
            more = block[504]
            _bound(found)
        entry.sparse = _checked(entry, found)
        return taken

    def _pax_sparse(
        self, records: dict[bytes, bytes], entry: Entry, real: int, regions: list[tuple[int, int]]
    ) -> None:
        """The map of one of the three later forms, the last of which has it in front of the data."""
        entry.size = real
        if records.get(b"GNU.sparse.major") == b"1":
            regions = self._map_in_data(entry)
        elif b"GNU.sparse.map" in records:
            numbers = [_digits(word) for word in records[b"GNU.sparse.map"].split(b",")]
            regions = list(zip(numbers[::2], numbers[1::2], strict=False))
        entry.sparse = _checked(entry, regions)

    def _map_in_data(self, entry: Entry) -> list[tuple[int, int]]:
        text = b""
        numbers: list[int] = []
        wanted = 1
        while len(numbers) < wanted:
            if entry.stored < BLOCK:
                raise BadArchive(f"{entry.name!r} has a map of holes that is cut short")
            text += self.stream.read(BLOCK)
            entry.stored -= BLOCK
            *lines, text = text.split(b"\n")
            if len(text) > BLOCK:  # no number is that long
                raise BadArchive(f"{entry.name!r} has a map of holes that has no numbers")
            numbers += map(_digits, lines[: wanted - len(numbers)])
            if wanted == 1 and numbers:
                wanted += 2 * min(numbers[0], _MOST_SPARSE + 1)
                numbers += map(_digits, lines[1:wanted])
        found = list(zip(numbers[1:wanted:2], numbers[2:wanted:2], strict=True))
        _bound(found)
        return found


class _Regions:
    """The map of a sparse file in pax's form 0.0: the same two records again and again, in order."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self._offset = 0

    def note(self, key: bytes, value: bytes) -> None:
        if key == b"GNU.sparse.offset":
            self._offset = _digits(value)
        elif key == b"GNU.sparse.numbytes":
            self.found.append((self._offset, _digits(value)))


def _check(header: bytes) -> None:
    """Raise BadArchive unless the header's checksum is right: of bytes, which old programs took as signed."""
    try:
        given = _number(header[148:156])
    except BadArchive:
        given = -1
    plain = sum(header) - sum(header[148:156]) + 8 * 0x20
    if given != plain and given != plain - 256 * sum(byte > 127 for byte in header[:148] + header[156:]):
        raise BadArchive("it isn't a tar archive, or is damaged: a header's checksum is wrong")


def _kind_of(kind: bytes, name: bytes) -> bytes:
    """The kind of an entry in one word. Raises BadArchive for what nobody knows."""
    if kind in _WITHOUT_DATA:
        return kind
    if kind in _FILES:
        return FOLDER if kind == b"\0" and name.endswith(b"/") else REGULAR
    raise BadArchive(f"{name!r} is of an unknown kind, {kind!r}")


def _device(header: bytes) -> tuple[int, int]:
    """Major and minor number, as far as Linux has them."""
    major, minor = _number(header[329:337]), _number(header[337:345])
    if not (0 <= major < _MOST_MAJOR and 0 <= minor < _MOST_MINOR):
        raise BadArchive(f"there can't be a device {major}:{minor}")
    return major, minor


def _number(field: bytes) -> int:
    """A number in octal digits, or in base 256 for those that are too large or negative."""
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        if field[0] & 0x80:
            value = int.from_bytes(field, "big", signed=False) & ((1 << (8 * len(field) - 1)) - 1)
            return value - (1 << (8 * len(field) - 1)) if field[0] == 0xFF else value
        # Some programs leave rubbish behind the zero byte at which a number ends.
        digits = field.partition(b"\0")[0].strip()
        if digits.isdigit():
            return _digits(digits, 8)
        raise BadArchive(f"{field!r} is no number") from None


def _padded(size: int) -> int:
    if size < 0:
        raise BadArchive(f"an entry has {size} bytes")
    return size + -size % BLOCK


def _digits(text: bytes, base: int = 10) -> int:
    if len(text) > 20 or not text.isdigit():
        raise BadArchive(f"{text[:40]!r} is no number")
    try:
        return int(text, base)
    except ValueError as error:
        raise BadArchive(f"{text!r} is no number") from error


def _decimal(records: dict[bytes, bytes], key: bytes, otherwise: int) -> int:
    value = records.get(key)
    return otherwise if value is None else _digits(value)


def _time(text: bytes | None) -> int:
    """Seconds with a fraction as nanoseconds; the fraction goes away from zero, as the sign does."""
    whole, _, fraction = (text or b"").partition(b".")
    negative = whole.startswith(b"-")
    nanoseconds = _digits(whole.removeprefix(b"-") or b"0") * _NANO + _digits((fraction + b"0" * 9)[:9])
    return -nanoseconds if negative else nanoseconds


def _pax_records(content: bytes, regions: _Regions) -> dict[bytes, bytes]:
    """The records `LENGTH KEY=VALUE\\n`; those of a map of holes go to `regions`."""
    records = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 20)
        if space < 0:
            break
        end = at + _digits(content[at:space])
        record = content[space + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if end > len(content) or not equals or record[-1:] != b"\n" or b"\0" in key:
            break
        regions.note(key, value)
        records[key] = value
        at = end
    if content[at:].strip(b"\0"):
        raise BadArchive(f"a pax header is damaged: {content[at : at + 40]!r}")
    return records


def _old_regions(field: bytes) -> list[tuple[int, int]]:
    """Regions of GNU's first form, 24 bytes each."""
    return [
        (_number(field[at : at + 12]), _number(field[at + 12 : at + 24]))
        for at in range(0, len(field), 24)
        if field[at]
    ]


def _bound(regions: list[tuple[int, int]]) -> None:
    if len(regions) > _MOST_SPARSE:
        raise BadArchive(f"a sparse file has more than {_MOST_SPARSE} regions")


def _checked(entry: Entry, regions: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The regions if they fit the file and its data. Raises BadArchive."""
    _bound(regions)
    end = stored = 0
    for offset, length in regions:
        if offset < end or length < 0:
            raise BadArchive(f"{entry.name!r} has a map of holes that is out of order")
        end = offset + length
        stored += length
    if end > entry.size or stored != entry.stored or entry.size > _MOST_SIZE:
        raise BadArchive(f"{entry.name!r} has a map of holes that doesn't fit its size")
    return tuple(regions)
