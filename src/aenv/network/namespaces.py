"""Named network namespaces, by system calls.

A function that must run inside a namespace gets a thread of its own that enters it and then ends, so no
other thread ever changes its namespace and none has to find its way back. (`os.setns` exists only from Python
3.12, and pyroute2's helpers fork the whole process.) Names are bind mounts in `/run/netns`, as `ip netns`
makes them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

NAMESPACES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_MS_BIND: Final = 4096  # linux/mount.h
_MS_REC: Final = 16384
_MS_SHARED: Final = 1 << 20
_MNT_DETACH: Final = 2
_OWN: Final = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def create_and_run(name: str, function: Callable[[int], T]) -> T:
    """Make the namespace `name` and call `function(host)` inside it.

    `host` is a file descriptor of the caller's namespace, valid during the call. Raises OSError
    (FileExistsError if the name is taken) or what the function raises; then the name may be left behind.
    """
    path = NAMESPACES / name

    def inside() -> T:
        host = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(_CLONE_NEWNET), "unshare")
            _check(_libc.mount(_OWN.encode(), bytes(path), b"none", _MS_BIND, None), f"mount {path}")
            return function(host)
        finally:
            os.close(host)

    path.touch(mode=0o444, exist_ok=False)
    return _in_thread(inside)


def prepare_folder() -> None:
    """Make `/run/netns` a shared mount of its own, as the first `ip netns add` on a host does; it stays.

    Were it left to `ip`, that would mount the folder over itself later, hide the names that exist by then,
    and make them impossible to remove. Raises OSError.
    """
    NAMESPACES.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = bytes(NAMESPACES)
    if _libc.mount(b"", folder, b"none", _MS_SHARED | _MS_REC, None) != 0:  # not a mount point yet
        _check(_libc.mount(folder, folder, b"none", _MS_BIND | _MS_REC, None), f"mount {NAMESPACES}")
        _check(_libc.mount(b"", folder, b"none", _MS_SHARED | _MS_REC, None), f"share {NAMESPACES}")


def run_inside(name: str, function: Callable[[], T]) -> T:
    """Call `function` inside the namespace `name`.

    Raises OSError (FileNotFoundError if there is no such namespace) or what the function raises.
    """

    def inside() -> T:
        descriptor = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(descriptor, _CLONE_NEWNET), f"setns {name}")
        finally:
            os.close(descriptor)
        return function()

    return _in_thread(inside)


def remove(name: str) -> None:
    """Remove the name; the kernel destroys the namespace when its last user is gone. Missing is fine."""
    path = NAMESPACES / name
    _libc.umount2(bytes(path), _MNT_DETACH)  # fails if creation stopped before the mount: the unlink decides
    path.unlink(missing_ok=True)


def names() -> list[str]:
    """Names of all namespaces on the host."""
    try:
        return sorted(entry.name for entry in NAMESPACES.iterdir())
    except FileNotFoundError:
        return []


def _in_thread(function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - carried over to the calling thread
            errors.append(error)

    thread = threading.Thread(target=body, name="aenv-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
