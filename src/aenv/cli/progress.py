"""A progress bar that shows itself only when something takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from aenv.cli.errors import printable

PATIENCE = 2.0
"""Seconds before the bar appears."""
_INTERVAL = 0.1


class Meter:
    """Counts what was copied; a context manager."""

    def __init__(self, total_bytes: int) -> None:
        self.files = 0
        self.bytes = 0
        self._total = total_bytes
        self._drawn = time.monotonic() + PATIENCE - _INTERVAL
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=total_bytes)
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._progress.stop()

    def add(self, name: str, size: int) -> None:
        """Note that `size` more bytes of `name` are copied."""
        self.bytes += size
        if time.monotonic() - self._drawn < _INTERVAL:
            return
        self._drawn = time.monotonic()
        if not self._shown:
            self._shown = True
            self._progress.start()
        self._progress.update(self._task, completed=self.bytes, description=printable(name))
        self._progress.refresh()

    def summary(self) -> str:
        """What was copied, in words."""
        return f"{self.files} file{'' if self.files == 1 else 's'}, {readable_size(self.bytes)}"


def readable_size(size: int) -> str:
    """A number of bytes with a unit, as `1.5 MB`."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
