"""Bytes that come in chunks of any size, read in the portions in which they are needed."""

from __future__ import annotations

from collections.abc import Iterator


class BadArchive(Exception):
    """The archive can't be understood, or it ends too early; the message says what is wrong with it."""


class ByteStream:
    """Bytes of an archive as they come, in chunks of any size."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._before + self._at

    def read(self, size: int) -> bytes:
        """The next `size` bytes. Raises BadArchive if there are fewer."""
        end = self._at + size
        if end <= len(self._chunk):
            piece = self._chunk[self._at : end]
            self._at = end
            return piece
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, piece by piece and without a copy. Raises BadArchive if there are fewer."""
        while size:
            if self.at_end():
                raise BadArchive("it ends in the middle of an entry")
            end = min(self._at + size, len(self._chunk))
            piece = memoryview(self._chunk)[self._at : end]
            size -= end - self._at
            self._at = end
            yield piece

    def skip(self, size: int) -> None:
        """Pass over `size` bytes. Raises BadArchive if there are fewer."""
        for _ in self.pieces(size):
            pass

    def at_end(self) -> bool:
        """Whether there is nothing more."""
        while self._at == len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return True
            self._take(chunk)
        return False

    def drain(self) -> None:
        """Read to the end."""
        for _ in self._chunks:
            pass

    def _take(self, chunk: bytes) -> None:
        self._before += len(self._chunk)
        self._chunk, self._at = chunk, 0
