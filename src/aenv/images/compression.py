"""How a layer or an archive is compressed, by its first bytes: names and media types are often wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aenv.errors import ImageUnusable
from aenv.images.models import Compression

HEAD_BYTES: Final = 6
_GZIP: Final = b"\x1f\x8b"  # RFC 1952
_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # RFC 8878
_SKIPPABLE: Final = tuple(bytes([0x50 + number, 0x2A, 0x4D, 0x18]) for number in range(16))  # the same
_UNSUPPORTED: Final = {b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4"}


def compression_of(path: Path) -> Compression:
    """How the file is compressed. Blocking. Raises ImageUnusable for a kind that isn't supported."""
    with path.open("rb") as file:
        return compression_by_head(file.read(HEAD_BYTES))


def compression_by_head(head: bytes) -> Compression:
    """The same by a file's first bytes, HEAD_BYTES of them."""
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith((_ZSTD, *_SKIPPABLE)):
        return "zstd"
    for magic, name in _UNSUPPORTED.items():
        if head.startswith(magic):
            raise ImageUnusable(f"an archive is compressed with {name}: only gzip and zstd are supported")
    return "none"
