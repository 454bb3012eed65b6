"""The process that edits a disk: process 1 of a namespace, so that nothing of it outlives it.

It is started by `aenv.disks.editing` with mounts of its own. It mounts the disk, which is a raw file or a
chain of overlays that `qemu-storage-daemon` shows as one, and calls the edits in a child whose root that is.
Its answer is one line of JSON on standard output; how far it is goes to standard error, line by line.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from aenv.disks.chain import chain
from aenv.disks.edits import EditRefused
from aenv.disks.loop import NoLoopDevice, loop_device
from aenv.disks.mounts import mount_ext4, mount_fusectl, mount_tmpfs, sync_filesystem, unmount
from aenv.disks.qcow2 import create_overlay

_PLACE: Final = Path("/sys")
"""Hidden in this process's mounts by a folder in memory: it is on every host, and nothing here needs it."""
_ROOT: Final = _PLACE / "root"
_EXPORT: Final = _PLACE / "disk"
_FUSE: Final = _PLACE / "fuse"
_NODE: Final = "disk"
_DAEMON: Final = "qemu-storage-daemon"
_START: Final = 30.0  # seconds for the daemon to show the disk
_END: Final = 60.0  # seconds for it to end
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

REFUSED: Final = "refused"
FULL: Final = "full"
HOST: Final = "host"
WRITING: Final = "writing"
BUG: Final = "bug"


class _Failed(Exception):
    """What to answer instead of success."""

    def __init__(self, kind: str, message: str, edit: int | None = None, number: int | None = None) -> None:
        super().__init__(message)
        self.answer = {"failed": kind, "message": message, "edit": edit, "errno": number}


def main() -> None:
    """Do what the request in the first argument says."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    try:
        _edit(json.loads(sys.argv[1]))
        answer: dict[str, Any] = {"failed": None}
    except _Failed as failure:
        answer = failure.answer
    except NoLoopDevice as error:
        answer = _Failed(HOST, str(error)).answer
    except OSError as error:
        answer = _Failed(WRITING, _words(error), number=error.errno).answer
    sys.stdout.write(json.dumps(answer) + "\n")


def _words(error: OSError) -> str:
    return os.strerror(error.errno or 0) + (f": {os.fsdecode(error.filename)}" if error.filename else "")


def _edit(request: dict[str, Any]) -> None:
    calls = [_call(each) for each in request["edits"]]
    mount_tmpfs(_PLACE)
    _ROOT.mkdir()
    _EXPORT.touch()
    _FUSE.mkdir()
    target, size = Path(request["target"]), request["size"]
    if not request["below"]:
        _edit_file(target, calls)
        return
    base, *overlays = map(Path, request["below"])
    create_overlay(target, size)
    with _shown_as_file(chain(_NODE, target, overlays, base), size):
        _edit_file(_EXPORT, calls)


def _call(edit: dict[str, Any]) -> Callable[[], None]:
    """The call of one edit, with its files open."""
    module, _, name = edit["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    files = {key: Path(path).open("rb") for key, path in edit["files"].items()}  # noqa: SIM115 - for `call`
    return lambda: function(**edit["arguments"], **files, say=_say)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


@contextmanager
def _shown_as_file(node: dict[str, object], size: int) -> Iterator[None]:
    """Let the daemon show the disk of `size` bytes as `_EXPORT`; it has written everything at the end."""
    export = f"fuse,id=export,node-name={_NODE},mountpoint={_EXPORT},writable=on"
    command = [_DAEMON, "--blockdev", json.dumps(node), "--export", export]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as daemon:
        try:
            end = time.monotonic() + _START
            while _EXPORT.stat().st_size != size:
                if daemon.poll() is not None or time.monotonic() > end:
                    raise _Failed(
                        HOST, f"{_DAEMON} doesn't show the disk: is /dev/fuse there (`modprobe fuse`)?"
                    )
                time.sleep(0.001)
            _one_at_a_time()
            yield
            daemon.terminate()
            try:
                status = daemon.wait(_END)
            except subprocess.TimeoutExpired:
                raise _Failed(WRITING, f"{_DAEMON} doesn't end") from None
            if status != 0:
                raise _Failed(WRITING, f"{_DAEMON} ended with exit status {status}")
        finally:
            daemon.kill()


def _one_at_a_time() -> None:
    """Have the kernel send the daemon one read or write at a time.

    Before QEMU 10.2 it puts a second write into the buffer of the first one while it still works on that.
    With direct I/O they all count as background. Source: Linux `Documentation/filesystems/fuse.rst`.
    """
    mount_fusectl(_FUSE)
    (_FUSE / str(os.minor(_EXPORT.stat().st_dev)) / "max_background").write_text("1")


def _edit_file(file: Path, calls: list[Callable[[], None]]) -> None:
    """Call the edits with the file system in `file` as their root; all is written when this returns."""
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        with loop_device(backing, _PLACE, direct=file == _EXPORT) as (path, device):
            _fill(path, os.lseek(device, 0, os.SEEK_END))
            mount_ext4(path, _ROOT)
            try:
                _in_child(calls)
                sync_filesystem(_ROOT)
            finally:
                unmount(_ROOT)
            os.fsync(device)  # tells of what couldn't be written, and has the daemon write its tables
    finally:
        os.close(backing)


def _fill(path: Path, size: int) -> None:
    """Make an ext4 file system that isn't mounted as large as its device of `size` bytes.

    Source of the fields: Linux `Documentation/filesystems/ext4/super.rst`.
    """
    with path.open("rb") as device:
        device.seek(1024)
        superblock = device.read(1024)
    blocks = int.from_bytes(superblock[0x150:0x154], "little") << 32
    blocks += int.from_bytes(superblock[0x04:0x08], "little")
    block = 1024 << int.from_bytes(superblock[0x18:0x1C], "little")
    if blocks * block < size - size % block:
        mount_ext4(path, _ROOT)  # what a guest left in the journal is done first
        unmount(_ROOT)
        done = subprocess.run(["resize2fs", "-f", path], capture_output=True, check=False, text=True)
        if done.returncode:
            raise _Failed(WRITING, f"resize2fs: {done.stderr.strip()}")


def _in_child(calls: list[Callable[[], None]]) -> None:
    """Call the edits in a child whose root is `_ROOT`. Raises _Failed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(calls, writer)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        content = answer.read()
    os.waitpid(child, 0)
    if not content:
        raise _Failed(BUG, "the process that edits the disk was killed: is the host short of memory?")
    failed = json.loads(content)
    if failed is not None:
        raise _Failed(**failed)


def _be_child(calls: list[Callable[[], None]], writer: int) -> NoReturn:
    failed: dict[str, Any] | None = None
    number = 0
    try:
        os.chroot(_ROOT)
        os.chdir("/")
        os.umask(0)
        for number, call in enumerate(calls):  # noqa: B007 - used for failures
            call()
    except EditRefused as error:
        failed = {"kind": REFUSED, "message": str(error), "edit": number}
    except OSError as error:
        kind = FULL if error.errno in _NO_ROOM else WRITING
        failed = {"kind": kind, "message": _words(error), "edit": number, "number": error.errno}
    except BaseException:  # noqa: BLE001 - it is told to whoever started this
        failed = {"kind": BUG, "message": traceback.format_exc(), "edit": number}
    os.write(writer, json.dumps(failed).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
