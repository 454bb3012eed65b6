"""A VM by hand: a capture restored, run and captured again by QEMU, the kernel and this file alone.

It is what `aenv bench` compares the server with: `engine.py` does with it what the server is asked to do, in
turns with the server and on the same files. It uses no code of the server and leaves out what a server does
besides: records, checksums, locks, errors that can be lived with.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

GUEST, GATEWAY, PORT = "169.254.0.21", "169.254.0.22", 49983
GUEST_MAC, TAP_MAC = "02:ae:00:00:00:15", "02:ae:00:00:00:16"
TUNSETIFF, TAP_FLAGS = 0x400454CA, 0x0002 | 0x1000 | 0x4000  # a tap, no packet information, vnet header
PAGE = 4096
PR_SET_THP_DISABLE = 41
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "G_SLICE": "always-malloc"}
launching = threading.Lock()

libc = ctypes.CDLL(None, use_errno=True)
for _call in (libc.process_vm_readv, libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)


@dataclass(frozen=True)
class Capture:
    """The files of a capture; `delta` has the layout of `aenv.memory.delta`."""

    base: str
    delta: str | None
    state: str
    disk: list[str]
    """The raw image, then the sealed qcow2 overlays, oldest first."""


@dataclass(frozen=True)
class Machine:
    """What all VMs share. `folder` holds `empty.qcow2` and a folder for each VM."""

    base: str
    accel: str
    cpu: str
    cpus: int
    memory_mib: int
    disk_mib: int
    folder: str


def make_network(name: str) -> None:
    """A network namespace with a tap whose other end is the guest's card."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    setup = (
        f"tuntap add dev tap0 mode tap vnet_hdr\nlink set tap0 address {TAP_MAC} up\n"
        f"addr add {GATEWAY}/30 dev tap0\nneigh add {GUEST} lladdr {GUEST_MAC} dev tap0\n"
    )
    subprocess.run(["ip", "-n", name, "-batch", "-"], input=setup, text=True, check=True)


@contextmanager
def inside(network: str) -> Iterator[None]:
    """This thread is in the namespace; what it opens stays there."""
    with Path("/proc/thread-self/ns/net").open() as own, Path(f"/run/netns/{network}").open() as other:
        libc.setns(other.fileno(), 0)
        try:
            yield
        finally:
            libc.setns(own.fileno(), 0)


class Guest:
    """The agent in the guest, over one connection."""

    def __init__(self, network: str) -> None:
        self._http = http.client.HTTPConnection(GUEST, PORT)
        with inside(network):
            self._socket = socket.socket()

    def init(self) -> None:
        """Give it an identity; this is the first answer."""
        if self._http.sock is None:
            self._socket.settimeout(60)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.connect((GUEST, PORT))
            self._http.sock = self._socket
        entropy = base64.b64encode(os.urandom(64)).decode()
        identity = {"sandboxId": "bare", "templateId": "bare", "hostname": "bare", "accessToken": ""}
        body = {**identity, "envVars": {}, "timestamp": time.time_ns(), "entropy": entropy}
        self._http.request("POST", "/init", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"/init: {answer.status} {said!r}")

    def run(self, command: str) -> float:
        """Run a command in a shell and return when its first output came, else its end."""
        body = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command]}}).encode()
        user = base64.b64encode(b"user:").decode()
        headers = {"Content-Type": "application/connect+json", "Authorization": f"Basic {user}"}
        frame = struct.pack(">BI", 0, len(body)) + body
        self._http.request("POST", "/process.Process/Start", frame, headers)
        answer = self._http.getresponse()
        came, ended = 0.0, False
        while head := answer.read(5):
            content = answer.read(struct.unpack(">BI", head)[1])
            event = json.loads(content).get("event", {}) if content else {}
            if not came and ("data" in event or "end" in event):
                came = time.perf_counter()
            ended = ended or "end" in event
        if not ended:
            raise RuntimeError(f"{command!r}: {answer.status}, and it didn't end")
        return came


class Vm:
    """One QEMU with its monitor on a socket pair."""

    def __init__(self, machine: Machine, network: str, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.guest = Guest(network)
        self.disk: list[str] = []
        folder.mkdir()
        self.qmp, theirs = socket.socketpair()
        self.qmp.settimeout(60)
        with inside(network):
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", TAP_FLAGS))
        command = self.command(machine, tap=tap, monitor=theirs.fileno())
        with launching:  # without huge pages, which QEMU would use for what is small
            libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
            passed = (tap, theirs.fileno())
            self.child = subprocess.Popen(command, pass_fds=passed, env={**os.environ, **MALLOC})
            libc.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)
        os.close(tap)
        theirs.close()
        self.lines = self.qmp.makefile("rb")
        self.lines.readline()
        self.call("qmp_capabilities")
        self.call("migrate-set-capabilities", capabilities=[{"capability": "events", "state": True}])

    @staticmethod
    def command(machine: Machine, *, tap: int, monitor: int) -> list[str]:
        """QEMU's command line, with the devices in the server's order."""
        size = machine.disk_mib << 20
        ram = {
            "qom-type": "memory-backend-file",
            "id": "ram",
            "size": machine.memory_mib << 20,
            "share": False,
        }
        nothing = {"driver": "null-co", "node-name": "nothing", "size": size, "read-zeroes": True}
        words = (
            "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -S -incoming defer"
            " -global migration.send-configuration=off -object throttle-group,id=limits"
            " -M microvm,acpi=on,rtc=on,pcie=off,suppress-vmdesc=on,memory-backend=ram"
            f" -accel {machine.accel} -cpu {machine.cpu} -smp {machine.cpus} -m {machine.memory_mib}M"
            " -chardev null,id=console -serial chardev:console"
            f" -chardev socket,id=qmp,fd={monitor} -mon chardev=qmp,mode=control"
        ).split()
        words += ["-object", json.dumps({**ram, "mem-path": machine.base})]
        words += ["-blockdev", json.dumps(nothing), "-blockdev", json.dumps(root("nothing"))]
        words += ["-device", "virtio-blk-device,drive=root,id=disk0", "-netdev", f"tap,id=net0,fd={tap}"]
        return [*words, "-device", f"virtio-net-device,id=nic0,netdev=net0,mac={GUEST_MAC}"]

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command; `receive` takes its answer."""
        self.qmp.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())

    def receive(self, *, load: bool = False) -> None:
        """The answer to the oldest command that has none, or the end of a load."""
        while True:
            message = json.loads(self.lines.readline() or b'{"error": "QEMU ended"}')
            status = message.get("data", {}).get("status") if message.get("event") == "MIGRATION" else None
            if "error" in message or status == "failed":
                raise RuntimeError(f"QEMU: {message}")
            if status == "completed" if load else "return" in message:
                return

    def call(self, command: str, **arguments: Any) -> None:
        """Send a command and wait for its answer."""
        self.send(command, **arguments)
        self.receive()

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait()
        self.lines.close()
        self.qmp.close()

    def overlay(self) -> dict[str, Any]:
        """A node of a new, empty overlay."""
        path = self.folder / f"{len(self.disk)}.qcow2"
        shutil.copyfile(Path(self.machine.folder) / "empty.qcow2", path)
        self.disk.append(str(path))
        return {**node(str(path), read_only=False), "node-name": f"disk-{len(self.disk)}"}

    def restore(self, capture: Capture) -> dict[str, float]:
        """Load a capture and let it run; when it runs and answers."""
        self.disk = list(capture.disk)
        below: dict[str, Any] = file(capture.disk[0], read_only=True)
        for path in capture.disk[1:]:
            below = {**node(path, read_only=True), "backing": below}
        self.send("blockdev-add", **self.overlay(), backing=below)
        self.send("blockdev-reopen", options=[root(f"disk-{len(self.disk)}")])
        if capture.delta is not None:  # QEMU opens the disk meanwhile
            load_memory(self.child.pid, capture)
        self.receive()
        self.receive()
        with Path(capture.state).open("rb") as state:
            getfd = json.dumps({"execute": "getfd", "arguments": {"fdname": "state"}}).encode()
            socket.send_fds(self.qmp, [getfd], [state.fileno()])
            self.receive()
        self.call("migrate-incoming", uri="fd:state")
        self.receive(load=True)
        return self.go_on()

    def go_on(self) -> dict[str, float]:
        """Let the vCPUs run and give the guest its identity; when it runs and answers."""
        self.call("cont")
        running = time.perf_counter()
        self.guest.init()
        return {"running": running, "answering": time.perf_counter()}

    def capture(self, name: str, *, go_on: bool) -> tuple[Capture, dict[str, float]]:
        """Stop, write what changed since the base, and perhaps go on; how long, and how much."""
        clock = time.perf_counter()
        folder, sealed, top = self.folder / name, list(self.disk), len(self.disk)
        folder.mkdir()
        self.call("blockdev-add", **self.overlay(), backing=None)
        stopped = time.perf_counter()
        self.call("stop")
        self.send("xen-save-devices-state", filename=str(folder / "state"), live=False)
        self.send("blockdev-snapshot", node=f"disk-{top}", overlay=f"disk-{top + 1}")
        base = self.machine.base
        numbers, pages = changed_pages(self.child.pid, base, self.machine.memory_mib << 20)
        self.receive()
        self.receive()
        if go_on:
            self.call("cont")
        frozen = ms(stopped)
        with (folder / "delta").open("wb") as delta:
            delta.write(struct.pack("<24xQQ", len(numbers), 0).ljust(PAGE, b"\0"))
            delta.write(pages.data)
            delta.write(numbers.astype("<u4").tobytes())
        taken = Capture(base, str(folder / "delta"), str(folder / "state"), sealed)
        return taken, {"done": ms(clock), "frozen": frozen, "mib": pages.nbytes / (1 << 20)}

    def private_mib(self) -> float:
        """Memory that is the process's own."""
        lines = Path(f"/proc/{self.child.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def ms(start: float, end: float | None = None) -> float:
    """Milliseconds from one `perf_counter` to another, or to now."""
    return ((time.perf_counter() if end is None else end) - start) * 1000


def file(path: str, *, read_only: bool) -> dict[str, Any]:
    """A node for a file as it is."""
    cache = {"no-flush": True}
    return {"driver": "file", "filename": path, "read-only": read_only, "locking": "off", "cache": cache}


def node(path: str, *, read_only: bool) -> dict[str, Any]:
    """A node for a qcow2 overlay."""
    below = file(path, read_only=read_only)
    return {"driver": "qcow2", "read-only": read_only, "file": below, "cache": {"no-flush": True}}


def root(below: str) -> dict[str, Any]:
    """The guest's disk over another node, which can be exchanged."""
    return {"driver": "throttle", "node-name": "root", "throttle-group": "limits", "file": below}


def mapped_at(pid: int, base: str) -> int:
    """Where a process maps the memory base."""
    with Path(f"/proc/{pid}/maps").open() as maps:
        return next(int(line.partition("-")[0], 16) for line in maps if line.rstrip().endswith(base))


def move(call: Any, pid: int, numbers: np.ndarray[Any, Any], address: int, local: int) -> None:
    """Copy the pages with these numbers, which are packed at `local` here, with few calls."""
    if not len(numbers):
        return
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts = np.concatenate(([0], cuts)).astype(np.uint64)
    lengths = np.diff(np.concatenate((firsts, [len(numbers)]))).astype(np.uint64) * PAGE
    remote = np.stack((numbers[firsts.astype(int)].astype(np.uint64) * PAGE + address, lengths), axis=1)
    for start in range(0, len(remote), 1024):
        part = np.ascontiguousarray(remote[start : start + 1024])
        size = int(part[:, 1].sum())
        here = np.array([local, size], dtype=np.uint64)
        if call(pid, here.ctypes.data, 1, part.ctypes.data, len(part), 0) != size:
            raise OSError(ctypes.get_errno(), "memory can't be copied")
        local += size


def load_memory(pid: int, capture: Capture) -> None:
    """Write a delta into a process's mapping of the base."""
    data = np.fromfile(str(capture.delta), dtype=np.uint8)
    count, zeros = struct.unpack("<QQ", data[24:40].tobytes())
    numbers = data[PAGE * (1 + count) :].view("<u4").astype(np.int64)
    address = mapped_at(pid, capture.base)
    if count:
        move(libc.process_vm_writev, pid, numbers[:count], address, data.ctypes.data + PAGE)
    if zeros:
        nothing = np.zeros(zeros * PAGE, dtype=np.uint8)
        move(libc.process_vm_writev, pid, numbers[count:], address, nothing.ctypes.data)


def changed_pages(pid: int, base: str, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The numbers and the content of the pages that a process has changed in its mapping of the base."""
    address = mapped_at(pid, base)
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        entries = np.frombuffer(os.pread(pagemap.fileno(), size // PAGE * 8, address // PAGE * 8), "<u8")
    top = entries >> np.uint64(61)  # present, swapped, of the file
    numbers = np.flatnonzero((top == 4) | (top == 2))
    pages = np.empty(len(numbers) * PAGE, dtype=np.uint8)
    move(libc.process_vm_readv, pid, numbers, address, pages.ctypes.data)
    return numbers, pages
