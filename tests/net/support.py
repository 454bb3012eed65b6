"""A stand-in for a VM and for the outside world, built from plain namespaces."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from aenv.network import namespaces, taps
from aenv.network.base import GATEWAY_ADDRESS, GUEST_ADDRESS, GUEST_MAC

T = TypeVar("T")

TAG: Final = f"{os.getpid() & 0xFFFF:04x}"
"""In the names of all that these tests make, since `/run/netns` is shared by the machine."""
OTHER_TAG: Final = f"{TAG}0"
_OUTSIDE: Final = f"198.18.{os.getpid() % 256}"
"""A network of its own in the range for tests (RFC 2544), so that test runs side by side don't meet."""
HOST_ADDRESS: Final = f"{_OUTSIDE}.1"
OUTSIDE_ADDRESS: Final = f"{_OUTSIDE}.2"
_TUNSETOFFLOAD: Final = 0x400454D0
_CHECKSUM_AND_TSO4: Final = 0x3


_CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter_new_namespace() -> None:
    """Move this thread, and those it starts from now on, into a network of its own."""
    assert _libc.unshare(_CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def enter_namespace(descriptor: int) -> None:
    """Move this thread back into a network."""
    assert _libc.setns(descriptor, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def ip(*arguments: str) -> str:
    """Run `ip` and return what it prints."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def nft(*arguments: str, namespace: str | None = None) -> None:
    """Change rules of the host or of a namespace."""
    prefix = ["ip", "netns", "exec", namespace] if namespace else []
    subprocess.run([*prefix, "nft", *arguments], check=True)


def host_state() -> dict[str, object]:
    """All that a pool could leave behind."""
    return {
        "namespaces": [name for name in namespaces.names() if TAG in name],
        "links": sorted(name for _, name in socket.if_nameindex()),
        "routes": sorted(ip("-4", "route", "show", "table", "all").splitlines()),
        "tables": subprocess.run(
            ["nft", "list", "tables"], check=True, capture_output=True, text=True
        ).stdout,
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if TAG in line],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": sorted(thread.name for thread in threading.enumerate() if "aenv" in thread.name),
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
    }


class Place:
    """A namespace of the test, whose sockets the test can open."""

    def __init__(self, name: str) -> None:
        self.name = name
        ip("netns", "add", name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments: str) -> str:
        """Run `ip` inside."""
        return ip("-n", self.name, *arguments)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function inside."""
        return namespaces.run_inside(self.name, function)

    def udp(self, address: str = "0.0.0.0", port: int = 0) -> socket.socket:  # noqa: S104
        """A bound UDP socket inside."""
        return self.run(lambda: udp(address, port))

    def tcp(self) -> socket.socket:
        """A TCP socket inside."""
        return self.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    def close(self) -> None:
        """Remove the namespace."""
        ip("netns", "del", self.name)


class Outside(Place):
    """The internet: knows no route to any slot, so only translated traffic gets an answer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.link = f"{name[:11]}-out"
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", self.link)
        ip("link", "set", self.link, "up")
        self.ip("addr", "add", f"{OUTSIDE_ADDRESS}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def close(self) -> None:
        """Remove the link at once, the namespace after it."""
        ip("link", "del", self.link)
        super().close()


class Guest(Place):
    """A real network stack behind a slot's tap: frames are carried between it and a tap of its own."""

    def __init__(self, name: str, tap: int) -> None:
        super().__init__(name)
        self._slot_tap = tap
        self._own_tap = self.run(lambda: taps.attach("eth0"))
        for descriptor in (tap, self._own_tap):
            fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUM_AND_TSO4)
        self.ip("link", "set", "eth0", "address", GUEST_MAC)
        self.ip("addr", "add", f"{GUEST_ADDRESS}/30", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        self.ip("route", "add", "default", "via", GATEWAY_ADDRESS)
        self._stop, self._stopper = os.pipe()
        self._carrier = threading.Thread(target=self._carry, name="test-guest")
        self._carrier.start()

    def _carry(self) -> None:
        other = {self._slot_tap: self._own_tap, self._own_tap: self._slot_tap}
        while True:
            ready, _, _ = select.select([*other, self._stop], [], [])
            if self._stop in ready:
                return
            for descriptor in ready:
                os.write(other[descriptor], os.read(descriptor, 70_000))

    def close(self) -> None:
        """End the VM: its tap is closed, as when a VMM exits. Again is fine."""
        if not self._carrier.is_alive():
            return
        os.write(self._stopper, b"x")
        self._carrier.join()
        for descriptor in (self._slot_tap, self._own_tap, self._stop, self._stopper):
            os.close(descriptor)
        super().close()


def udp(address: str = "0.0.0.0", port: int = 0) -> socket.socket:  # noqa: S104
    """A bound UDP socket in this thread's namespace; waits at most five seconds."""
    result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    result.settimeout(5)
    result.bind((address, port))
    return result


def nothing_arrived(receiver: socket.socket) -> bool:
    """Whether no datagram is waiting."""
    receiver.setblocking(False)
    try:
        receiver.recv(100)
    except BlockingIOError:
        return True
    return False
