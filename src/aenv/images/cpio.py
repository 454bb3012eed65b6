"""A writer of cpio archives in the `newc` form, the one the Linux kernel unpacks as an initramfs.

Source of the format: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`. The output depends
on nothing but the entries, so equal content gives equal bytes.
"""

from __future__ import annotations

import io
import stat

_ALIGNMENT = 4


class CpioWriter:
    """Collects entries in memory; `finish` ends the archive and returns it.

    Parents must be added before what they hold: the kernel makes no folder on its own.
    """

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._inode = 0

    def directory(self, path: str, *, mode: int = 0o755) -> None:
        """Add an empty folder, owned by root."""
        self._entry(path, stat.S_IFDIR | mode, b"", links=2)

    def file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Add a regular file, owned by root. Raises ValueError from 4 GiB on."""
        if len(content) >= 1 << 32:
            raise ValueError(f"{path}: a newc archive holds no file of 4 GiB or more")
        self._entry(path, stat.S_IFREG | mode, content)

    def character_device(self, path: str, major: int, minor: int, *, mode: int = 0o600) -> None:
        """Add a character device node."""
        self._entry(path, stat.S_IFCHR | mode, b"", device=(major, minor))

    def finish(self) -> bytes:
        """Write the trailer and return the whole archive."""
        self._inode = -1
        self._entry("TRAILER!!!", 0, b"")
        return self._out.getvalue()

    def _entry(
        self, path: str, mode: int, content: bytes, *, links: int = 1, device: tuple[int, int] = (0, 0)
    ) -> None:
        name = path.strip("/").encode() + b"\0"
        self._inode += 1
        fields = (
            self._inode,
            mode,
            0,  # uid
            0,  # gid
            links,
            0,  # mtime: none, so that the archive is reproducible
            len(content),
            0,  # device that held the file
            0,
            *device,
            len(name),
            0,  # checksum, unused by this form
        )
        self._out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        self._pad()
        self._out.write(content)
        self._pad()

    def _pad(self) -> None:
        self._out.write(b"\0" * (-self._out.tell() % _ALIGNMENT))
