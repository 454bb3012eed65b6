"""A node on real VMs in a process of its own, so that it can be killed; `RemoteNode` is its other end.

That process gets its settings and then one function after the other over a socket. It stops when it is told
to, or when nobody is left who could tell it.
"""

from __future__ import annotations

import asyncio
import copyreg
import functools
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from aenv import errors
from aenv.errors import AenvError, RuntimeFailure
from aenv.images.bundle import GuestBundle
from aenv.images.progress import Progress
from aenv.network.pool import SlotPool
from aenv.node import Node
from aenv.runtimes.choice import Chosen
from aenv.runtimes.qemu.bare import QemuBareVmm
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.runtime import QemuRuntime
from aenv.settings import Settings
from tests.lives.failing import FailingDatabase

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

PATIENCE = 180.0
"""Seconds in which the other process does what it is asked."""

_STEPS: dict[str, tuple[type, str]] = {
    "boot": (QemuRuntime, "boot"),
    "spawn": (QemuRuntime, "spawn"),
    "load": (QemuBareVmm, "_load"),
    "freeze": (QemuInstance, "freeze"),
    "thaw": (QemuInstance, "_thaw"),
    "capture": (QemuInstance, "_capture"),
}
"""What can be told to fail, below all that cleans up after it."""

_ordered: list[str] = []


def order_failure(_node: Node, step: str) -> None:
    """Let the next `step` fail in this process."""
    _ordered.append(step)


def drop_failures(_node: Node) -> None:
    """Let none fail any more."""
    _ordered.clear()


@dataclass(frozen=True)
class Parts:
    """What a node is made of."""

    settings: Settings
    bundle: GuestBundle

    @property
    def image(self) -> Path:
        """The root file system."""
        return self.settings.images_dir / "image.ext4"

    async def choose(self, settings: Settings, _progress: Progress) -> Chosen:
        """The real runtime and network, on another root file system than Debian."""
        network = SlotPool(
            settings.tag,
            prepared=settings.prepared_slots,
            slot_network=settings.slot_network,
            veth_network=settings.veth_network,
        )
        runtime = await QemuRuntime.create(self.bundle, network.open_tap, accel=settings.accel)
        return Chosen(runtime, network, self.image.resolve())


class RemoteNode:
    """Starts a node in a process of its own; then it can be asked."""

    def __init__(self, parts: Parts) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._log = parts.settings.home / "server.log"
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.vm import apart; apart.serve({theirs.fileno()})"],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
            )
        try:
            self._connection.send(parts)
            self._answer()
        except BaseException:
            self.kill()
            raise

    def begin(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Call `function` there and don't wait for it."""
        self._connection.send((function, arguments))

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What `function` returns or raises there."""
        self.begin(function, *arguments)
        answer: T = self._answer()
        return answer

    def _answer(self) -> Any:
        try:
            if not self._connection.poll(PATIENCE):
                raise AssertionError(f"the server doesn't answer: {self._last_words()}")
            result, error = self._connection.recv()
        except (EOFError, OSError) as error:
            raise AssertionError(f"the server has ended: {self._last_words()}") from error
        if error is not None:
            raise error
        return result

    def _last_words(self) -> str:
        return self._log.read_text()[-4000:]

    def stop(self) -> None:
        """Stop the node and the process."""
        self._connection.send(None)
        self._answer()
        self._connection.close()
        assert self._process.wait(PATIENCE) == 0, self._last_words()

    def kill(self) -> None:
        """Kill the process, if it lives."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._connection.close()


async def _serve(connection: Connection) -> None:
    parts: Parts = connection.recv()
    node = Node(parts.settings, parts.choose)
    await node.start()
    connection.send((None, None))
    while (job := await asyncio.to_thread(_next, connection)) is not None:
        function, arguments = job
        try:
            answer: tuple[Any, Exception | None] = (await function(node, *arguments), None)
        except Exception as error:  # noqa: BLE001 -- it is raised at the other end
            answer = (None, _with_traceback(error))
        connection.send(answer)
    await node.stop()
    connection.send((None, None))


def _next(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None


def _with_traceback(error: Exception) -> Exception:
    """The error, such that it says at the other end where it was raised."""
    error.add_note("".join(traceback.format_exception(error)))
    return error


def _rebuilt(kind: type[AenvError], arguments: tuple[Any, ...], state: dict[str, Any]) -> AenvError:
    """An error as it was; its constructor may take something else than what it has become."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


def _let_errors_travel() -> None:
    def reduced(error: AenvError) -> tuple[Any, ...]:
        return _rebuilt, (type(error), error.args, error.__dict__)

    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, AenvError):
            copyreg.pickle(kind, reduced)


def _let_steps_fail() -> None:
    for step, (owner, name) in _STEPS.items():
        mock.patch.object(owner, name, _failing(step, getattr(owner, name))).start()


def _failing(step: str, original: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    @functools.wraps(original)
    async def attempt(*arguments: Any, **named: Any) -> T:
        if step in _ordered:
            _ordered.remove(step)
            raise RuntimeFailure("it was told to fail")
        return await original(*arguments, **named)

    return attempt


def serve(descriptor: int) -> None:
    """Be that process; `descriptor` is its end of the socket."""
    _let_errors_travel()
    _let_steps_fail()
    changes = {
        "aenv.node.Database": FailingDatabase,
        "aenv.sandboxes.activity.QUIET_SECONDS": 1e9,  # it compacts when it is told to
        "aenv.sandboxes.activity.PATIENCE_SECONDS": 1e9,
        "aenv.runtimes.qemu.compaction.MAX_OVERLAYS": 2,
    }
    for name, value in changes.items():
        mock.patch(name, value).start()
    asyncio.run(_serve(Connection(descriptor)))
