"""Logs of sandboxes on disk: one file of JSON lines each, whose oldest lines give way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.durable import write_whole
from aenv.guest.reports import JournalEntry, Level

MOST_BYTES = 1 << 20
"""Size of a file at which old lines are dropped."""

LEFT_BYTES = MOST_BYTES * 3 // 4
"""Size after old lines were dropped: not every line should cost a new file."""

MOST_LINE = 32 << 10
"""Longest line, bytes; a longer one loses its fields."""

HOST = "sandbox"
"""The logger of what the server did to a sandbox."""

ROLLBACK = "rollback"
"""The event after which the guest's journal is an earlier one."""


@dataclass(frozen=True)
class LogEntry:
    """One thing that happened in or to a sandbox. `time` is in seconds since the epoch.

    An entry of the guest's journal has the journal's name and its number there: from the last one collecting
    goes on, also after a restart of the server.
    """

    time: float
    level: Level
    logger: str
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
    journal: str = ""
    sequence: int = 0

    @classmethod
    def of_journal(cls, entry: JournalEntry, journal: str) -> LogEntry:
        """An entry that the guest's journal had."""
        return cls(
            entry.time, entry.level, entry.logger, entry.message, entry.fields, journal, entry.sequence
        )


@dataclass(frozen=True)
class Position:
    """Up to where a guest's journal has been collected."""

    journal: str = ""
    sequence: int = 0
    since: float = 0.0
    """Entries of another journal that are older than this have been collected."""


def rollback_entry(time: float, snapshot: str) -> LogEntry:
    """Says that the sandbox was put back to a snapshot at that time.

    Where a log has this entry, the guest's journal starts anew: it is the one of when the snapshot was taken,
    and what is added to it from now on has numbers that were used before.
    """
    fields = {"event": ROLLBACK, "snapshot": snapshot}
    return LogEntry(time, "info", HOST, f"sandbox put back to snapshot {snapshot}", fields)


class LogFile:
    """One sandbox's log. Methods block; those that change it need `lock`."""

    def __init__(self, path: Path) -> None:
        self.lock = asyncio.Lock()
        self.removed = False
        self._path = path
        self._size: int | None = None
        """None until the file was looked at."""
        self._position = Position()

    def position(self) -> Position:
        """Where collecting goes on. Raises OSError."""
        self._look()
        return self._position

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries; nothing if the log was removed. Raises OSError, and then some may be missing."""
        if self.removed or not entries:
            return
        size = self._look()
        lines = b"".join(map(_line, entries))
        self._size = None  # if writing fails, what is there must be looked at again
        if size + len(lines) > MOST_BYTES:
            lines = _newest(self._content() + lines)
            write_whole(self._path, lines, survive=False)
            size = 0
        else:
            with self._path.open("ab") as file:
                file.write(lines)
        self._size = size + len(lines)
        self._position = _position(entries, self._position)

    def read(self) -> list[LogEntry]:
        """All entries in the order of their times. Raises OSError."""
        return sorted(_parse(self._content()), key=lambda entry: entry.time)

    def remove(self) -> None:
        """Delete the file; later entries are dropped. Raises OSError."""
        self.removed = True
        self._path.unlink(missing_ok=True)

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _look(self) -> int:
        """Learn the file's size and the position in it, once, and end a line that a crash cut off."""
        if self._size is None:
            content = self._content()
            self._position = _position(_parse(content), Position())
            if content and not content.endswith(b"\n"):
                with self._path.open("ab") as file:
                    file.write(b"\n")
                content += b"\n"
            self._size = len(content)
        return self._size


def _position(entries: Iterable[LogEntry], before: Position) -> Position:
    """The place in the guest's journal after these entries."""
    for entry in entries:
        if entry.sequence:
            before = Position(entry.journal, entry.sequence)
        elif entry.logger == HOST and entry.fields.get("event") == ROLLBACK:
            before = Position(since=entry.time)
    return before


def _line(entry: LogEntry) -> bytes:
    record: dict[str, Any] = dict(vars(entry))
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    if len(line) > MOST_LINE:
        line = json.dumps({**record, "fields": {}}, separators=(",", ":")).encode() + b"\n"
    return line


def _newest(content: bytes) -> bytes:
    """The last lines that fit."""
    start = content.find(b"\n", max(0, len(content) - LEFT_BYTES)) + 1
    return content[start:]


def _parse(content: bytes) -> list[LogEntry]:
    """The entries of all lines that can be read."""
    entries = []
    for line in content.splitlines():
        try:
            entries.append(LogEntry(**json.loads(line)))
        except (ValueError, TypeError):  # cut off by a crash
            continue
    return entries
