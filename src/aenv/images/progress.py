"""How long steps show that they are alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress as RichDisplay
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

_DETAIL_WIDTH = 60


class Progress(Protocol):
    """A display of steps, each with a name and a stream of lines that say what it does now."""

    def step(self, name: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show `name` until the block ends; call the result with each new line of detail."""
        ...


class QuietProgress:
    """Shows nothing."""

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Do nothing with the name or the lines."""
        yield lambda _line: None


class RichProgress:
    """On a terminal a spinner, the elapsed time and the last line; elsewhere plain lines.

    Steps may run side by side or inside each other; a step that ends leaves one line with its time.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._display: RichDisplay | None = None
        self._active = 0
        self._lock = threading.Lock()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show one step; a failure is marked as such and goes on to the caller."""
        started = time.monotonic()
        outcome = "failed after"
        try:
            if self._console.is_terminal:
                with self._spinner(name) as update:
                    yield update
            else:
                self._line(f"{name} …")
                yield lambda _line: None
            outcome = "done in"
        finally:
            self._line(f"{name} … {outcome} {time.monotonic() - started:.1f} s")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def _spinner(self, name: str) -> Iterator[Callable[[str], None]]:
        display = self._acquire()
        task = display.add_task(name, total=None, detail="")

        def update(line: str) -> None:
            display.update(task, detail=line.strip()[:_DETAIL_WIDTH])

        try:
            yield update
        finally:
            display.remove_task(task)
            self._release()

    def _acquire(self) -> RichDisplay:
        with self._lock:
            if self._display is None:
                self._display = RichDisplay(
                    SpinnerColumn(),
                    TextColumn("{task.description}", markup=False),
                    TimeElapsedColumn(),
                    TextColumn("{task.fields[detail]}", style="dim", markup=False),
                    console=self._console,
                    transient=True,
                )
                self._display.start()
            self._active += 1
            return self._display

    def _release(self) -> None:
        with self._lock:
            self._active -= 1
            if self._active == 0 and self._display is not None:
                self._display.stop()
                self._display = None
