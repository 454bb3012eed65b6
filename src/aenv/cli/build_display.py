"""What a build does, as it is shown: its log, and how far the layers of its image are."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.text import Text

from aenv.cli.api import Wire
from aenv.cli.errors import printable
from aenv.cli.progress import readable_size

LINE_SECONDS = 5.0
"""How often a line says how far things are where there is no terminal for bars."""

_STYLES = {"error": "red", "warn": "yellow", "debug": "dim"}


class BuildDisplay:
    """On standard error, or another stream; on a terminal with a bar for each layer or upload.

    A context manager.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        chosen = stream or sys.stderr
        self._console = Console(file=chosen)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=self._console,
            transient=True,
            disable=not chosen.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, line: str, level: str = "info") -> None:
        """Print a line above the bars."""
        self._console.print(Text(printable(line), style=_STYLES.get(level, "")), soft_wrap=True)

    def entries(self, entries: Sequence[Wire]) -> None:
        """Print entries of the build's log."""
        for entry in entries:
            self.say(entry["message"], entry["level"])

    def layers(self, layers: Sequence[Wire]) -> None:
        """Show how far each layer is. One that was here already needs no bar."""
        for layer in layers:
            digest, done, total = layer["digest"], layer["done"], layer["total"]
            if digest in self._tasks or done != total:
                self._show(digest, f"layer {digest.partition(':')[2][:12]}", done, total)
        coming = [layer for layer in layers if layer["done"] != layer["total"]]
        if coming:
            done = sum(layer["done"] for layer in layers)
            total = sum(layer["total"] or layer["done"] for layer in layers)
            count = f"{len(layers) - len(coming)} of {len(layers)} layers"
            self._line(f"{count}, {readable_size(done)} of {readable_size(total)}")

    def sent(self, name: str, done: int, total: int) -> None:
        """Show how far an upload is."""
        self._show(name, printable(f"sending {name}"), done, total)
        if done < total:
            self._line(f"sending {name}: {readable_size(done)} of {readable_size(total)}")

    def _show(self, key: str, description: str, done: int, total: int | None) -> None:
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = self._bars.add_task(description, total=total)
        self._bars.update(task, completed=done, total=total, visible=done != total)

    def _line(self, text: str) -> None:
        if self._bars.disable and time.monotonic() - self._spoke >= LINE_SECONDS:
            self._spoke = time.monotonic()
            self.say(text)
