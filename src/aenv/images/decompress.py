"""The archive in a layer's file: decompressed and hashed in a thread of its own, chunk by chunk."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import BinaryIO, Final, Protocol, TypeAlias

import zstandard
from isal import igzip_lib, isal_zlib

_READ: Final = 256 << 10
_CHUNK: Final = 1 << 20
_AHEAD: Final = 4
"""Chunks that wait for whoever takes them."""
_GZIP: Final = 31
"""zlib's word for the format gzip with a window of any size."""
_MOST_WINDOW: Final = 1 << 27
"""Bytes of memory that a zstd stream may ask for: as much as the program zstd grants."""

Failure: TypeAlias = "BadCompression | OSError"


class BadCompression(Exception):
    """The file can't be decompressed; the message says why."""


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


def decompressed(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """What is in `file`, compressed by `none`, `gzip` or `zstd`, in chunks of at most 1 MiB.

    Raises BadCompression, OSError.
    """
    if compression == "none":
        return iter(lambda: file.read(_CHUNK), b"")
    if compression == "gzip":
        return _gunzip(file)
    if compression == "zstd":
        return _unzstd(file)
    raise BadCompression(f"the compression {compression!r} is unknown")


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    """All members one after the other, up to zeros or the end."""
    data = file.read(_READ)
    while data.strip(b"\0"):
        inflater: _Inflater = isal_zlib.decompressobj(_GZIP)
        while not inflater.eof:
            data = data or file.read(_READ)
            try:
                chunk = inflater.decompress(data, _CHUNK)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub has an instance
                raise BadCompression(f"the gzip stream is damaged: {error}") from error
            if chunk:
                yield chunk
            elif not data:
                raise BadCompression("the gzip stream ends too early")
            data = inflater.unconsumed_tail
        data = inflater.unused_data or file.read(_READ)


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    try:
        with decompressor.stream_reader(file, read_across_frames=True, closefd=False) as reader:
            while chunk := reader.read(_CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise BadCompression(f"the zstd stream is damaged: {error}") from error


class Layer:
    """Iterates over the archive in a layer's file, which a thread reads ahead. Use it as a context.

    `diff_id` is known once all of it was taken.
    """

    def __init__(self, file: BinaryIO, compression: str) -> None:
        self._chunks: queue.Queue[bytes | Failure | None] = queue.Queue(_AHEAD)
        self._hash = hashlib.sha256()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, args=(lambda: decompressed(file, compression),))

    def __enter__(self) -> Layer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        while self._thread.is_alive():
            try:
                self._chunks.get(timeout=0.01)
            except queue.Empty:
                continue

    @property
    def diff_id(self) -> str:
        """`sha256:…` of all that was decompressed."""
        return f"sha256:{self._hash.hexdigest()}"

    def __iter__(self) -> Iterator[bytes]:
        """Each chunk. Raises BadCompression, OSError."""
        while (item := self._chunks.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def _work(self, start: Callable[[], Iterator[bytes]]) -> None:
        end: Failure | None = None
        try:
            for chunk in start():
                self._hash.update(chunk)
                self._chunks.put(chunk)
                if self._stopped:
                    return
        except (BadCompression, OSError) as error:
            end = error
        self._chunks.put(end)
