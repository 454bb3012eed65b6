"""Small file systems of a test's own, to be filled."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

_EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2  # Linux, fs/ext4/ext4.h


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system in memory of `mib` MiB at `folder`."""
    folder.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder)
    try:
        yield folder
    finally:
        _run("umount", "-l", folder)


def resize(folder: Path, mib: int) -> None:
    """Give a file system in memory another size."""
    _run("mount", "-o", f"remount,size={mib}m", folder)


@contextlib.contextmanager
def loop_disk(folder: Path, mib: int) -> Iterator[Path]:
    """An ext4 file system of `mib` MiB at `folder`, in a file beside it."""
    image = folder.with_name(f"{folder.name}.ext4")
    image.unlink(missing_ok=True)
    folder.mkdir(exist_ok=True)
    _run("mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1", image, f"{mib}M")
    _run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        _run("umount", folder)
        image.unlink()


def break_off(folder: Path) -> None:
    """Let a `loop_disk` answer everything with an I/O error from now on, as if its device had gone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """The folder `source` at `target`, too."""
    target.mkdir(parents=True, exist_ok=True)
    _run("mount", "--bind", source, target)
    try:
        yield
    finally:
        _run("umount", target)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The file system at `folder` can't be written in the block."""
    _run("mount", "-o", "remount,ro", folder)
    try:
        yield
    finally:
        _run("mount", "-o", "remount,rw", folder)


@contextlib.contextmanager
def filled(folder: Path, leave: int) -> Iterator[Path]:
    """A file that takes all of the file system but `leave` bytes, for the block."""
    filler = folder / "filler"
    fill(filler, leave)
    try:
        yield filler
    finally:
        filler.unlink()


def fill(filler: Path, leave: int) -> None:
    """Let a file grow, or begin, until only `leave` bytes are free."""
    folder = filler.parent
    with filler.open("ab", buffering=0) as file:
        for piece in (16 << 20, 1 << 20, 64 << 10, 4 << 10):  # what is free isn't all for data
            with contextlib.suppress(OSError):
                while _free(folder) > leave + piece:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
