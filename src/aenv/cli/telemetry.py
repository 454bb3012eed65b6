"""Commands that look into a sandbox from outside: logs and stats."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from aenv.cli.api import ApiClient, Wire
from aenv.cli.context import api, run
from aenv.cli.errors import printable
from aenv.cli.options import Format, OutputOption, SandboxArgument, chosen_format
from aenv.cli.output import local_time, print_line, print_list

POLL_SECONDS = 1.0
OVERLAP_MS = 2000
"""How far back entries are asked for again while following: one may become known after a later one."""

PAGE = 1000
"""Most entries in one answer of the API."""

_COLUMNS = ("TIME", "CPU", "CPUS", "MEMORY (MiB)", "OF", "CACHE", "DISK (MiB)", "OF")


class Level(StrEnum):
    """How much a log entry matters."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


def logs(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries come.")] = False,
    level: Annotated[Level, typer.Option(help="Only entries of this level and above.")] = Level.INFO,
    output: OutputOption = None,
) -> None:
    """Show what happened in and to a sandbox: its processes, files that clients touched, kernel warnings.

    As JSON it is one object a line.

    \b
    aenv logs ID --level warn
    aenv logs ID -f
    """
    chosen = chosen_format(ctx, output) or (Format.TABLE if sys.stdout.isatty() else Format.JSON)
    show = _compact if chosen is Format.JSON else _readable

    async def work() -> None:
        async with api(ctx) as client:
            tail = _Tail(client, sandbox, level)
            while True:
                for entry in await tail.news():
                    print_line(show(entry))
                if not follow:
                    return
                await asyncio.sleep(POLL_SECONDS)

    run(work())


def stats(ctx: typer.Context, sandbox: SandboxArgument, output: OutputOption = None) -> None:
    """Show what a sandbox uses: the newest sample that the server has. The JSON holds those of the last hour.

    \b
    aenv stats ID
    """

    async def work() -> list[Wire]:
        async with api(ctx) as client:
            return await client.metrics(sandbox)

    samples = run(work())
    chosen = chosen_format(ctx, output) or (Format.TABLE if sys.stdout.isatty() else Format.JSON)
    shown = samples if chosen is Format.JSON else samples[-1:]
    print_list([(_cells(sample), sample) for sample in shown], _COLUMNS, chosen)


class _Tail:
    """The entries of a log, each once, as they come."""

    def __init__(self, client: ApiClient, sandbox: str, level: str) -> None:
        self._client = client
        self._sandbox = sandbox
        self._level = level
        self._cursor = 0
        self._seen: dict[str, int] = {}
        """When each entry was, of those that may come again."""

    async def news(self) -> list[Wire]:
        """Entries that weren't there before."""
        found: list[Wire] = []
        while True:
            page = await self._client.logs(self._sandbox, self._cursor, self._level)
            new = {text: entry for entry in page if (text := _compact(entry)) not in self._seen}
            found.extend(new.values())
            self._seen |= {text: _milliseconds(entry) for text, entry in new.items()}
            newest = max(self._seen.values(), default=0)
            if len(page) < PAGE:
                self._cursor = max(0, newest - OVERLAP_MS)
                self._seen = {text: when for text, when in self._seen.items() if when >= self._cursor}
                return found
            self._cursor = newest + (0 if new else 1)


def _milliseconds(entry: Wire) -> int:
    return int(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000)


def _compact(entry: Wire) -> str:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def _readable(entry: Wire) -> str:
    logger = entry["fields"].get("logger", "")
    return printable(f"{local_time(entry['timestamp'])} {entry['level']:<5} {logger:<8} {entry['message']}")


def _cells(sample: Wire) -> tuple[str, ...]:
    mib = 1 << 20
    return (
        local_time(sample["timestamp"]),
        f"{sample['cpuUsedPct']:.1f} %",
        str(sample["cpuCount"]),
        *(str(sample[name] // mib) for name in ("memUsed", "memTotal", "memCache", "diskUsed", "diskTotal")),
    )
