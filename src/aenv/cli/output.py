"""Results on standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from aenv.cli.options import Format


def print_list(
    rows: Sequence[tuple[Sequence[str], Any]], columns: Sequence[str], chosen: Format | None
) -> None:
    """Print rows, each the cells of a table and what it is in JSON. By default a terminal gets the table."""
    if (chosen or (Format.TABLE if sys.stdout.isatty() else Format.JSON)) is Format.JSON:
        print_json([wire for _, wire in rows])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for cells, _ in rows:
        table.add_row(*cells)
    _console().print(table, highlight=False, markup=False)


def print_fields(fields: Sequence[tuple[str, str]], wire: Any, chosen: Format | None) -> None:
    """Print one thing: its fields below each other, or its JSON."""
    if (chosen or (Format.TABLE if sys.stdout.isatty() else Format.JSON)) is Format.JSON:
        print_json(wire)
        return
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print_line(f"{name:<{width}}  {value}")


def print_json(value: Any) -> None:
    """Print indented JSON."""
    print_line(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(text: str) -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def local_time(stamp: str) -> str:
    """An RFC 3339 time in this machine's time zone, to the second; anything else as it is."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return stamp


def remaining(stamp: str) -> str:
    """How long until an RFC 3339 time, as `4m 10s`; empty if it has passed or can't be read."""
    try:
        seconds = int((datetime.fromisoformat(stamp) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return ""
    if seconds <= 0:
        return ""
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds % 60}s"


def _console() -> Console:
    # Into a pipe a table must not be folded at 80 columns.
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, soft_wrap=False)
