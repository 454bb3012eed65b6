"""What a process in a guest tells its client."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from aenv.errors import RuntimeFailure


@dataclass(frozen=True, slots=True)
class Start:
    """The process runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Stdout:
    """Bytes from its standard output. A character may be split between two of these."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stderr:
    """Bytes from its standard error."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pty:
    """Bytes from its terminal."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """It ended. `exit_code` is -1 if a signal ended it; `status` names the signal then ("signal: killed")."""

    exit_code: int
    status: str = ""
    error: str = ""

    @property
    def shell_code(self) -> int:
        """The exit code as a shell shows it: 128 + the signal's number for a signal."""
        if self.exit_code >= 0:
            return self.exit_code
        name = (self.status or self.error).removeprefix("signal: ").removesuffix(" (core dumped)")
        return 128 + _SIGNALS.get(name, 0) if name in _SIGNALS else 1


Event = Start | Stdout | Stderr | Pty | End

_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
}
"""Go's names of the Linux signals (`syscall.Signal.String`), which envd puts into `status`."""


def parse_event(message: dict[str, Any]) -> Event | None:
    """The event in a message of `Start` or `Connect`; None for a keep-alive or a kind not known here.

    Raises RuntimeFailure if the fields aren't what the protocol says.
    """
    try:
        event = message["event"]
        if "data" in event:
            return _parse_data(event["data"])
        if "end" in event:
            end = event["end"]
            return End(int(end.get("exitCode", 0)), str(end.get("status", "")), str(end.get("error", "")))
        if "start" in event:
            return Start(int(event["start"]["pid"]))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error) as error:
        raise RuntimeFailure("the guest agent sent an event that can't be read") from error
    return None


def _parse_data(data: dict[str, str]) -> Event | None:
    if "stdout" in data:
        return Stdout(base64.b64decode(data["stdout"]))
    if "stderr" in data:
        return Stderr(base64.b64decode(data["stderr"]))
    if "pty" in data:
        return Pty(base64.b64decode(data["pty"]))
    return None
