"""The QMP connection to one QEMU process (QEMU `docs/interop/qmp-spec.rst`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from qemu.qmp import EventListener, ExecuteError, Message, QMPClient, QMPError

from aenv.errors import RuntimeFailure, VmmUnresponsive
from aenv.tasks import finish

SOCKET: Final = "qmp.sock"
_COMMAND_TIMEOUT: Final = 30.0
_CONNECT_TIMEOUT: Final = 30.0

# The library logs every lost connection as an error; here a lost connection is an ordinary way to end.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL + 1)

EventHandler = Callable[[str, Mapping[str, object]], None]


def listen(folder: Path) -> socket.socket:
    """A listening socket in `folder`, to be inherited by QEMU: a client can connect before QEMU is up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(folder) as path:
            listener.bind(path)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


class _Client(QMPClient):
    """The library's client without its log of messages.

    It makes indented JSON of each of them whether anybody reads that or not: a third of the event loop's work
    in a start.
    """

    def _cb_outbound(self, msg: Message) -> Message:
        return msg

    def _cb_inbound(self, msg: Message) -> Message:
        return msg


class Monitor:
    """Sends commands and hands events to a callback. Owned by the process it belongs to."""

    def __init__(self, on_event: EventHandler) -> None:
        self._client = _Client()
        self._on_event = on_event
        self._client.register_listener(EventListener(event_filter=self._take))

    async def connect(self, folder: Path) -> None:
        """Connect to the socket in `folder` and negotiate. Raises RuntimeFailure, VmmUnresponsive (30 s)."""
        try:
            with _short_path(folder) as path:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await self._client.connect(path)
        except TimeoutError as error:
            raise VmmUnresponsive(f"QEMU's monitor didn't answer for {_CONNECT_TIMEOUT:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise RuntimeFailure(f"QEMU's monitor doesn't answer: {error}") from error

    async def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one command and return its answer; once sent it is waited for, even if the caller is cancelled.

        Raises RuntimeFailure if QEMU refuses or has ended; VmmUnresponsive if it doesn't answer for 30 s.
        """
        return await finish(self._execute(command, arguments))

    async def close(self) -> None:
        """Drop the connection. Idempotent."""
        with contextlib.suppress(QMPError, OSError, EOFError):
            await self._client.disconnect()

    async def _execute(self, command: str, arguments: Mapping[str, object] | None) -> object:
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT):
                return await self._client.execute(command, dict(arguments) if arguments else None)
        except ExecuteError as error:
            raise RuntimeFailure(f"QEMU refused {command}: {error}") from error
        except TimeoutError as error:
            raise VmmUnresponsive(f"QEMU didn't answer {command} for {_COMMAND_TIMEOUT:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise RuntimeFailure(f"QEMU ended during {command}") from error

    def _take(self, event: Message) -> bool:
        """Called by the library for each event, as a filter: False keeps it from piling up in a queue."""
        data = event.get("data")
        self._on_event(str(event["event"]), data if isinstance(data, dict) else {})
        return False


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The socket's path through a descriptor of its folder: addresses of sockets have at most 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
