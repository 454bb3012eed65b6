"""One QEMU process: start it, notice its end and why, end it, reap it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from aenv import host
from aenv.errors import RuntimeFailure
from aenv.host import MemoryUse
from aenv.runtimes.qemu import leftovers, monitor
from aenv.runtimes.qemu.huge_pages import no_huge_pages
from aenv.runtimes.qemu.monitor import Monitor
from aenv.tasks import finish

log = structlog.get_logger()

_STDERR_BYTES: Final = 65536
_STDERR_LINES: Final = 3
_TERMINATE: Final = 2.0  # seconds from SIGTERM to SIGKILL
_IO_ERRORS_QUIET: Final = 60.0  # seconds in which errors of a guest's disk are counted and not logged
_ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "MALLOC_ARENA_MAX": "1",  # QEMU's threads allocate little; an arena each costs memory in every VM
    "MALLOC_MMAP_THRESHOLD_": "131072",  # else it grows, and tables that were outgrown stay in the heap
    "G_SLICE": "always-malloc",  # GLib's own pools hold more than they hand out
}


class VmProcess:
    """A running QEMU with its monitor. `ended` resolves to the reason when it, or its guest, can't go on.

    It is in a session of its own and outlives this process: after a crash it is found by `leftovers`, and
    can be adopted.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        stderr: int | None,
        child: subprocess.Popen[bytes] | None,
        *,
        background: bool = False,
    ) -> None:
        self.pid = pid
        self._background = background
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.monitor = Monitor(self._on_event)
        self.no_space = asyncio.Event()
        """QEMU stopped the VM because there was no space for what the guest wrote; `cont` tries again."""
        self.migration: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolves to the outcome of loading device state: "completed" or "failed"."""
        self._io_errors = 0
        self._quiet_until = 0.0
        self._child = child
        self._stderr = stderr
        self._exited = asyncio.Event()
        self._pidfd = pidfd
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    @classmethod
    async def start(
        cls, arguments: Sequence[str], folder: Path, pass_fds: Sequence[int], *, background: bool = False
    ) -> VmProcess:
        """Start QEMU with `arguments` plus a monitor in `folder`, and connect. Raises RuntimeFailure.

        `pass_fds` stay the caller's. In the `background` it has little of the CPU while others want it, where
        this server could give it more again.
        """
        background = background and host.may_renice()
        launch = asyncio.to_thread(_launch, arguments, folder, tuple(pass_fds), background=background)
        child, stderr = await finish(launch, undo=_discard)
        process = cls(child.pid, os.pidfd_open(child.pid), stderr, child, background=background)
        try:
            await process.monitor.connect(folder)
        except BaseException as error:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process._exited.wait(), 0.2)  # its own words are better, if it has any
            reason = process.ended.result() if process.ended.done() else None
            await process.stop()
            if isinstance(error, RuntimeFailure) and reason is not None:
                raise RuntimeFailure(f"QEMU didn't start: {reason}") from error
            raise
        return process

    @classmethod
    async def adopt(cls, folder: Path) -> VmProcess:
        """Take over the QEMU that an earlier server started in `folder`; it is ended if that fails.

        Nobody but its parent hears how it ended, so of an adopted one only its last words are known.
        Raises RuntimeFailure.
        """
        opening = asyncio.to_thread(leftovers.open_process, folder)
        pid, pidfd = await finish(opening, undo=lambda opened: os.close(opened[1]))
        process = cls(pid, pidfd, _stderr_of(pid), None)
        try:
            await process.monitor.connect(folder)
        except BaseException:
            await process.stop()
            raise
        return process

    def memory(self) -> MemoryUse:
        """What it holds of the host's memory; nothing if it has been reaped."""
        return MemoryUse() if self._exited.is_set() else host.memory_of(self.pid)

    async def to_foreground(self) -> None:
        """Have as much of the CPU as others, if it was started in the background."""
        if self._background and not self._exited.is_set():
            await finish(asyncio.to_thread(host.set_background, self.pid, background=False))
            self._background = False

    def check(self) -> None:
        """Raise RuntimeFailure if the process or its guest has ended."""
        if self.ended.done():
            raise RuntimeFailure(f"the virtual machine has ended: {self.ended.result()}")

    async def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """`Monitor.execute`, with the reason if the process has ended."""
        self.check()
        try:
            return await self.monitor.execute(command, arguments)
        except RuntimeFailure:
            await asyncio.sleep(0)
            self.check()
            raise

    async def stop(self) -> None:
        """End the process, reap it and close all that belongs to it. Idempotent, runs to its end."""
        await finish(self._stop())

    async def leave(self) -> None:
        """Let go of the process, which runs on, and close all that belongs to it here."""
        if not self._exited.is_set():
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._child is not None:
            self._child.returncode = 0  # or it would complain, when forgotten, that it still runs
        await self._close()

    async def _stop(self) -> None:
        self._end("it was stopped")
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._exited.is_set():
                break
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), _TERMINATE)
        await self._exited.wait()
        await self._close()

    async def _close(self) -> None:
        await self.monitor.close()
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        how = ", nobody knows how, as an earlier server had started it"
        if self._child is not None:
            how = _how(self._child.wait())  # it has exited: this only reaps
        os.close(self._pidfd)
        self._end(f"QEMU ended{how}{self._last_words()}")
        self._exited.set()

    def _last_words(self) -> str:
        if self._stderr is None:
            return ""
        text = os.pread(self._stderr, _STDERR_BYTES, 0).rstrip(b"\0").decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return ": " + "; ".join(lines[-_STDERR_LINES:]) if lines else ""

    def _on_event(self, name: str, data: Mapping[str, object]) -> None:
        if name == "BLOCK_IO_ERROR":
            self._on_io_error(data)
        elif name == "GUEST_PANICKED":
            self._end("the guest's kernel panicked")
        elif name == "SHUTDOWN" and data.get("guest"):
            powered_off = data.get("reason") == "guest-shutdown"
            self._end("the guest powered off" if powered_off else "the guest's kernel crashed or restarted")
        elif name == "MIGRATION" and not self.migration.done():
            self._on_migration(str(data.get("status")))

    def _on_io_error(self, data: Mapping[str, object]) -> None:
        """QEMU's default: without space the VM stops, of anything else the guest is told and may go on."""
        if data.get("action") == "stop":
            self.no_space.set()
            return
        self._io_errors += 1
        now = time.monotonic()
        if now >= self._quiet_until:  # a guest whose disk has gone meets an error with every request
            self._quiet_until = now + _IO_ERRORS_QUIET
            what = {key: data.get(key) for key in ("operation", "reason")}
            told = "a guest's disk can't be used on the host: the guest was told"
            log.error(told, pid=self.pid, errors=self._io_errors, **what)

    def _on_migration(self, status: str) -> None:
        if status in ("completed", "failed"):
            self.migration.set_result(status)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)


def _how(code: int) -> str:
    return f" with signal {-code} ({signal.Signals(-code).name})" if code < 0 else f" with exit status {code}"


def _stderr_of(pid: int) -> int | None:
    """The file in memory that `_launch` made the standard error of this process, if it can be had."""
    try:
        return os.open(f"/proc/{pid}/fd/2", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _launch(
    arguments: Sequence[str], folder: Path, pass_fds: tuple[int, ...], *, background: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Start QEMU; returns it and its standard error, a file in memory that can't grow past 64 KiB."""
    stderr = os.memfd_create("qemu-stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(stderr, _STDERR_BYTES)
        fcntl.fcntl(stderr, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        with monitor.listen(folder) as listener:
            socket_option = f"socket,id=qmp,fd={listener.fileno()},server=on,wait=off"
            name = leftovers.name_arguments(folder)
            with no_huge_pages():
                child = subprocess.Popen(
                    [*arguments, *name, "-chardev", socket_option, "-mon", "chardev=qmp,mode=control"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=(*pass_fds, listener.fileno()),
                    start_new_session=True,
                    cwd="/",
                    env=_ENVIRONMENT,
                )
    except BaseException:
        os.close(stderr)
        raise
    try:
        if background:
            host.set_background(child.pid, background=True)
        leftovers.record(folder, child.pid)
    except BaseException:
        _discard((child, stderr))
        raise
    return child, stderr


def _discard(launched: tuple[subprocess.Popen[bytes], int]) -> None:
    child, stderr = launched
    child.kill()
    child.wait()
    os.close(stderr)
