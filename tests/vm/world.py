"""Where the state machine runs shorter: a node on QEMU and real networks, in a process that can be killed."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient
from aenv.network import namespaces
from aenv.network.builder import SlotBuilder
from aenv.network.plan import SlotPlan
from aenv.network.pool import SlotPool
from aenv.node import Node
from aenv.runtimes.base import Capture
from aenv.runtimes.qemu import leftovers
from tests.lives import operations
from tests.lives.model import Seen
from tests.vm import apart
from tests.vm.apart import Parts, RemoteNode
from tests.vm.support import WORKLOAD_PORT

T = TypeVar("T")

SETTLED = 10.0
"""Seconds in which slots are wiped and made anew."""

BEGUN = 60.0
"""Seconds in which a process that was started in a guest answers."""

WHILE = 0.8
"""Seconds that most operations take."""


class RealWorld:
    """A world; see `tests.lives.world.World`. Its home begins as a copy of `home`, whose base is made."""

    def __init__(self, parts: Parts, home: Path) -> None:
        self._began = time.monotonic()
        self.note("start")
        copy_home(parts.settings.home, home)
        self._parts = Parts(parts.settings.model_copy(update={"home": home}), parts.bundle)
        self._settings = self._parts.settings
        self._node = RemoteNode(self._parts)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call it in the server's process."""
        return self._node.call(function, *arguments)

    order_failure = staticmethod(apart.order_failure)
    drop_failures = staticmethod(apart.drop_failures)

    def began(self, sandbox_id: str) -> None:
        """Start the process that keeps the values."""
        self.call(_start_workload, sandbox_id)
        deadline = time.monotonic() + BEGUN
        while True:
            try:
                self._ask(sandbox_id, "GET", "/count")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def put(self, sandbox_id: str, key: str, value: int, *, disk: bool) -> None:
        """Tell that process."""
        self._ask(sandbox_id, "PUT", f"/{'file' if disk else 'value'}/{key}", str(value))

    def look(self, sandbox_id: str, *, cold: bool = False) -> Seen:
        """Ask it."""
        answer = json.loads(self._ask(sandbox_id, "GET", "/all?cold=1" if cold else "/all"))
        memory = {key: int(value) for key, value in answer["values"].items()}
        # A file that was made just before its VM's end may have its name and no content yet.
        files = {
            key: int(value) if value.isdigit() else -1 for key, value in answer["files"].items() if value
        }
        return Seen(memory, files, counted=answer["count"])

    def _ask(self, sandbox_id: str, method: str, path: str, body: str | None = None) -> bytes:
        endpoint = self.call(operations.endpoint, sandbox_id)
        connection = http.client.HTTPConnection(endpoint.host, WORKLOAD_PORT, timeout=BEGUN)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            content = response.read()
            assert response.status == 200, content
            return content
        finally:
            connection.close()

    def look_into(self, capture: Capture) -> None:
        """Only a VM can tell. Every layer is there, though."""
        missing = [layer for layer in capture.layers if layer.path.stat().st_size != layer.size]
        assert not missing, missing

    def kill_vmm(self, sandbox_id: str) -> None:
        """With the signal that nothing survives."""
        self._kill(self._pid(sandbox_id))

    def _pid(self, sandbox_id: str) -> int:
        row = self.call(operations.row, sandbox_id)
        assert row is not None
        record = self._settings.workspace_dir / str(row.instance_id) / leftovers.RECORD
        return int(json.loads(record.read_text())["pid"])

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """In between, nothing is left on the host."""
        self._node.stop()
        self._check_nothing_is_left()
        self._node = RemoteNode(self._parts)

    def crash(self, dead: Collection[str]) -> None:
        """First the server, so that it can't notice the end of its VMMs."""
        pids = [self._pid(each) for each in dead]
        self._node.kill()
        for pid in pids:
            self._kill(pid)
        self._node = RemoteNode(self._parts)

    def crash_amid(self, function: Callable[..., Awaitable[Any]], *arguments: Any, moment: int) -> None:
        """Some time after it was asked."""
        self._node.begin(function, *arguments)
        time.sleep(moment / 100 * WHILE)
        self._node.kill()
        self._node = RemoteNode(self._parts)

    def check_leaks(self, instances: Collection[str]) -> None:
        """As many processes, namespaces, links and mounts; slots are wiped in the background."""
        expected = set(instances)
        deadline = time.monotonic() + SETTLED
        while True:
            slots = self.call(_slots)
            found = (self._vmms(), self._slots_on_host(), self._mounts())
            if found == (expected, (slots, slots), slots) and len(slots) == len(expected) + 1:
                return
            assert time.monotonic() < deadline, f"{found} instead of {expected} and {slots}"
            time.sleep(0.02)

    def _vmms(self) -> set[str]:
        """The folders of the VMM processes."""
        workspace = self._settings.workspace_dir.resolve()
        found = set()
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                folder = leftovers._folder_of(int(process.name))
                if folder is not None and folder.parent == workspace:
                    found.add(folder.name)
        return found

    def _slots_on_host(self) -> tuple[set[int], set[int]]:
        """Which slots have a namespace, and which a link."""
        tag = self._settings.tag
        spaces = {int(name.rpartition("-")[2]) for name in namespaces.names() if f"-{tag}-" in name}
        links = {int(name.rpartition("x")[2]) for _, name in socket.if_nameindex() if f"av{tag}x" in name}
        return spaces, links

    def _mounts(self) -> set[int]:
        """Which slots have a mount; any other mount of the server counts as slot 0."""
        lines = Path("/proc/mounts").read_text().splitlines()
        targets = [line.split()[1] for line in lines]
        own = [each for each in targets if f"-{self._settings.tag}-" in each]
        others = {0 for each in targets if each.startswith(str(self._settings.home))}
        return {int(each.rpartition("-")[2]) for each in own} | others

    def _check_nothing_is_left(self) -> None:
        found = (self._vmms(), self._slots_on_host(), self._mounts())
        assert found == (set(), (set(), set()), set()), found
        left = list(self._settings.workspace_dir.iterdir())
        assert not left, left

    def note(self, step: str) -> None:
        """Say it at once: a run that fails may not fail again."""
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} {step}\n")

    def close(self) -> None:
        """Stop the server; whatever a failure has left goes, too."""
        self.note("end")
        try:
            self._node.stop()
            self._check_nothing_is_left()
        except BaseException:
            self._node.kill()
            self._remove_leftovers()
            raise
        finally:
            shutil.rmtree(self._settings.home)

    def _remove_leftovers(self) -> None:
        settings = self._settings
        leftovers.end_strays(settings.workspace_dir.resolve(), ())
        builder = SlotBuilder(SlotPlan(settings.tag, settings.slot_network, settings.veth_network), ())
        builder.remove_all()
        builder.leave_host()


async def _slots(node: Node) -> set[int]:
    """The slots that exist, and shall exist."""
    assert isinstance(node.network, SlotPool)
    return {*node.network._in_use, *(slot.index for slot in node.network._idle)}


async def _start_workload(node: Node, sandbox_id: str) -> None:
    sandbox = await node.sandboxes.get(sandbox_id)
    endpoint = await operations.endpoint(node, sandbox_id)
    url = f"http://{endpoint.host}:{ENVD_PORT}"
    async with EnvdClient(url, token=sandbox.envd_token, user="root") as envd:
        (await envd.processes.start("/bin/workload")).close()


def copy_home(source: Path, target: Path) -> None:
    """A home like a stopped server's; what never changes is in both."""
    constant = ("captures", "images")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*constant))
    for name in constant:
        shutil.copytree(source / name, target / name, copy_function=os.link)
