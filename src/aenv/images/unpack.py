"""One layer of an image put onto a root file system, as the OCI image specification wants it.

It works on `/`: whoever calls it has made the file system to be changed the process's root, so that no name,
no link and no symbolic link in a layer leads out of it. Source: OCI image-spec, "Image Layer Filesystem
Changeset"; where that is silent, what docker does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Final

from aenv.disks.edits import EditRefused
from aenv.images import tarball
from aenv.images.bytestream import BadArchive, ByteStream
from aenv.images.decompress import BadCompression, Layer
from aenv.images.tarball import Entry, TarReader

_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"
_AUFS: Final = b".wh..wh."
"""Begins the names of the housekeeping of an old file system: skipped, like docker does."""
_MOST_ID: Final = (1 << 32) - 2
_TIMES: Final = (-(1 << 31) * 1_000_000_000, (1 << 34) * 1_000_000_000 - 1)
"""The nanoseconds that ext4 can keep."""
_REFUSED_XATTR: Final = frozenset({errno.ENOTSUP, errno.EPERM})
"""What the kernel answers to attributes that a kind of file can't have: they are left out, as docker does."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final = {
    tarball.CHARACTER_DEVICE: stat.S_IFCHR,
    tarball.BLOCK_DEVICE: stat.S_IFBLK,
    tarball.FIFO: stat.S_IFIFO,
}


class BadLayer(EditRefused):
    """The layer can't be applied; the message says why, and at which entry."""


@dataclass(frozen=True)
class Applied:
    """What a layer had in it."""

    entries: int
    bytes: int


def apply_layer(
    file: BinaryIO,
    compression: str,
    diff_id: str | None,
    say: Callable[[str], None] = lambda _line: None,
) -> Applied:
    """Apply the layer in `file` to `/`; with a `diff_id`, its archive must have that digest.

    Holds a few MiB of it at a time. Raises BadLayer, with part of it applied, or OSError if the disk can't
    be written.
    """
    with Layer(file, compression) as layer:
        stream = ByteStream(iter(layer))
        unpacker = Unpacker(stream)
        try:
            entries = unpacker.run(say)
            stream.drain()
        except (BadArchive, BadCompression) as error:
            raise BadLayer(str(error)) from error
        if diff_id is not None and layer.diff_id != diff_id:
            raise BadLayer(f"its content has the digest {layer.diff_id}, the image says {diff_id}")
        return Applied(entries, stream.position)


class Unpacker:
    """Applies the entries of one archive.

    Paths here are absolute and real: no part of one but the last is a symbolic link.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._folders: dict[bytes, bytes] = {}
        """The real path of each folder in which something was put, by the archive's name of it."""
        self._times: dict[bytes, tuple[int, int]] = {}
        """The times of folders, which are set last: putting something into one changes them."""
        self._here: set[bytes] = {b""}
        """What this layer has put, and what is above that: its own whiteouts spare it."""

    def run(self, say: Callable[[str], None]) -> int:
        """Apply all entries and say how far it is, now and then; how many there were.

        Raises BadArchive, BadLayer, OSError.
        """
        os.umask(0)
        count = 0
        for count, entry in enumerate(TarReader(self._stream), 1):
            try:
                self._apply(entry)
            except OSError as error:
                raise _failure(entry, error) from error
            if count % 1000 == 0:
                say(f"{count} entries, {self._stream.position >> 20} MiB")
        for path, times in self._times.items():
            _set_times(path or b"/", *times)
        return count

    def _apply(self, entry: Entry) -> None:
        path = _clean(entry.name)
        if not path:
            if entry.kind == tarball.FOLDER:
                self._furnish_folder(b"", entry, new=False)
            return
        parent, _, name = path.rpartition(b"/")
        if name.startswith(_WHITEOUT):
            self._white_out(entry, parent, name)
        elif not path.startswith(_AUFS) and b"/" + _AUFS not in path:
            folder = self._folder(parent, entry)
            target = folder + b"/" + name
            self._note_here(folder)
            self._here.add(target)
            if entry.kind == tarball.FOLDER:
                self._put_folder(target, entry)
            else:
                self._put(target, entry)

    def _put(self, target: bytes, entry: Entry) -> None:
        """Anything but a folder, in the place of whatever is there."""
        for attempt in (1, 2):
            try:
                if entry.kind == tarball.REGULAR:
                    return self._put_file(target, entry)
                if entry.kind == tarball.HARD_LINK:
                    return self._put_link(target, entry)
                if entry.kind == tarball.SYMLINK:
                    os.symlink(entry.link, target)
                else:
                    os.mknod(target, _KINDS[entry.kind] | 0o600, os.makedev(*entry.device))
                break
            except FileExistsError:
                if attempt == 2:
                    raise
                self._remove(target)
        os.chown(target, *_owner(entry), follow_symlinks=False)
        if entry.kind != tarball.SYMLINK:
            os.chmod(target, entry.mode)
        _set_xattrs(target, entry)
        _set_times(target, *_times(entry))
        return None

    def _put_file(self, target: bytes, entry: Entry) -> None:
        descriptor = os.open(target, _NEW, 0o600)
        try:
            self._write(descriptor, entry)
            os.fchown(descriptor, *_owner(entry))
            os.fchmod(descriptor, entry.mode)  # after the owner: a change of that takes setuid away
            if entry.xattrs:
                _set_xattrs(descriptor, entry)
            os.utime(descriptor, ns=_times(entry))
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, entry: Entry) -> None:
        stream = self._stream
        if entry.sparse is None:
            for piece in stream.pieces(entry.stored):
                _write_all(descriptor, piece)
            return
        for offset, length in entry.sparse:
            os.lseek(descriptor, offset, os.SEEK_SET)
            for piece in stream.pieces(length):
                _write_all(descriptor, piece)
        os.ftruncate(descriptor, entry.size)

    def _put_link(self, target: bytes, entry: Entry) -> None:
        path = _clean(entry.link)
        parent, _, name = path.rpartition(b"/")
        try:
            source = self._folder(parent, None) + b"/" + name
            if source != target:
                os.link(source, target, follow_symlinks=False)
        except FileNotFoundError as error:
            raise BadLayer(
                f"{_shown(entry.name)} is a link to {_shown(entry.link)}, which isn't there"
            ) from error

    def _put_folder(self, target: bytes, entry: Entry) -> None:
        try:
            os.mkdir(target, 0o700)
            new = True
        except FileExistsError:
            new = not stat.S_ISDIR(os.lstat(target).st_mode)
            if new:
                self._remove(target)
                os.mkdir(target, 0o700)
        self._furnish_folder(target, entry, new=new)

    def _furnish_folder(self, path: bytes, entry: Entry, *, new: bool) -> None:
        real = path or b"/"
        os.chown(real, *_owner(entry))
        os.chmod(real, entry.mode)
        if not new:
            for name in os.listxattr(real):
                if os.fsencode(name) not in entry.xattrs:
                    _drop_xattr(real, name)
        _set_xattrs(real, entry)
        self._times[path] = _times(entry)

    def _folder(self, name: bytes, entry: Entry | None) -> bytes:
        """The real path of a folder; without one it is made, for `entry` and with its time.

        Raises FileNotFoundError if it isn't there and there is no entry.
        """
        known = self._folders.get(name)
        if known is not None:
            return known
        path = os.path.realpath(b"/" + name).rstrip(b"/")
        missing = []
        while True:
            try:
                found = os.stat(path or b"/")
                break
            except FileNotFoundError:
                if entry is None:
                    raise
                missing.append(path)
                path = path.rpartition(b"/")[0]
        self._times.setdefault(path, (found.st_atime_ns, found.st_mtime_ns))
        for path in reversed(missing):
            os.mkdir(path, 0o755)
            assert entry is not None  # noqa: S101 - else nothing is missing
            self._times[path] = _times(entry)
        self._folders[name] = path
        return path

    def _note_here(self, folder: bytes) -> None:
        """Something is put into a folder, which is spared by the layer's own whiteouts then."""
        while folder not in self._here:
            self._here.add(folder)
            folder = folder.rpartition(b"/")[0]

    def _white_out(self, entry: Entry, parent: bytes, name: bytes) -> None:
        """Take away what lower layers have, and only that."""
        hidden = name.removeprefix(_WHITEOUT)
        if name != _OPAQUE and (hidden in (b"", b".", b"..")):
            raise BadLayer(f"{_shown(entry.name)} takes nothing away that has a name")
        if name != _OPAQUE and name.startswith(_AUFS):
            return
        try:
            folder = self._folder(parent, None)
        except FileNotFoundError:
            return
        if name == _OPAQUE:
            self._remove_below(folder)
        else:
            self._remove_lower(folder + b"/" + hidden)

    def _remove_lower(self, path: bytes) -> None:
        if path not in self._here:
            self._remove(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            self._remove_below(path)

    def _remove_below(self, path: bytes) -> None:
        for name in os.listdir(path or b"/"):
            self._remove_lower(path + b"/" + name)

    def _remove(self, path: bytes) -> None:
        """Remove whatever is at a path, if anything is."""
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISDIR(mode):
            _remove_tree(path)
            below = path + b"/"
            for each in [known for known in self._times if known == path or known.startswith(below)]:
                del self._times[each]
        else:
            os.unlink(path)
        if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            self._folders.clear()  # what was looked up may have led through it


def _remove_tree(top: bytes) -> None:
    """Remove a folder and all in it, however deep, without following links."""
    waiting = [top]
    while waiting:
        path = waiting[-1]
        below = []
        with os.scandir(path) as found:
            for each in found:
                if each.is_dir(follow_symlinks=False):
                    below.append(each.path)
                else:
                    os.unlink(each.path)
        if below:
            waiting += below
        else:
            os.rmdir(waiting.pop())


def _clean(name: bytes) -> bytes:
    """A name as a path from the root, without a slash in front, `.` and `..`; nothing is above the root."""
    name = name.removeprefix(b"./").strip(b"/")
    if b"./" not in name and b"//" not in name and not name.endswith(b"."):
        return name
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def _owner(entry: Entry) -> tuple[int, int]:
    if not (0 <= entry.uid <= _MOST_ID and 0 <= entry.gid <= _MOST_ID):
        raise BadLayer(f"{_shown(entry.name)} has an owner that can't be: {entry.uid}:{entry.gid}")
    return entry.uid, entry.gid


def _times(entry: Entry) -> tuple[int, int]:
    """Access and change, as far as ext4 can keep them."""
    least, most = _TIMES
    changed = min(max(entry.mtime, least), most)
    return (changed if entry.atime is None else min(max(entry.atime, least), most)), changed


def _set_times(path: bytes, accessed: int, changed: int) -> None:
    os.utime(path, ns=(accessed, changed), follow_symlinks=False)


def _set_xattrs(path: bytes | int, entry: Entry) -> None:
    for name, value in entry.xattrs.items():
        try:
            if isinstance(path, int):
                os.setxattr(path, name, value)
            else:
                os.setxattr(path, name, value, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _REFUSED_XATTR:
                raise


def _drop_xattr(path: bytes, name: str) -> None:
    try:
        os.removexattr(path, name)
    except OSError as error:
        if error.errno not in _REFUSED_XATTR:
            raise


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _failure(entry: Entry, error: OSError) -> Exception:
    """What a failed call means: trouble with the disk stays what it is, all else is the layer's."""
    if error.errno in (errno.EIO, errno.EROFS, errno.EDQUOT, errno.ENOMEM):
        return error
    if error.errno == errno.ENOSPC and not entry.xattrs:
        return error
    return BadLayer(f"{_shown(entry.name)} can't be put there: {os.strerror(error.errno or 0)}")


def _shown(name: bytes) -> str:
    return repr(os.fsdecode(name))[:200]
