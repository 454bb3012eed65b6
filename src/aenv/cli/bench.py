"""The command `aenv bench`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aenv.cli.errors import failure_of, say
from aenv.cli.options import Format, OutputOption, chosen_format
from aenv.cli.output import print_json, print_list
from aenv.errors import AenvError


class Area(StrEnum):
    """What can be measured."""

    LIFECYCLE = "lifecycle"
    EXEC = "exec"
    FILES = "files"
    PROXY = "proxy"


RUNS = {Area.LIFECYCLE: 20, Area.EXEC: 50, Area.FILES: 5, Area.PROXY: 5}


def bench(
    ctx: typer.Context,
    *,
    area: Annotated[Area, typer.Argument(help="What to measure.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often; else as suits.")] = None,
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of a server that isn't running [AENV_HOME]."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Measure this machine, with servers of the benchmark's own. Leave it alone meanwhile.

    Failures count in the column ok/n and are told on standard error.

    \b
    aenv bench lifecycle --runs 20   create, pause, resume, snapshot, fork
    aenv bench exec                  a command, against envd asked directly
    aenv bench files                 256 MiB up and down, against envd directly
    aenv bench proxy --json          small requests, against nginx
    """
    # Late, as these take a moment to load.
    from aenv.bench.rows import COLUMNS  # noqa: PLC0415
    from aenv.bench.run import run  # noqa: PLC0415

    folder = home or Path(os.environ.get("AENV_HOME", "/var/lib/aenv"))
    try:
        report = run(area.value, folder, runs or RUNS[area], say)
    except AenvError as error:
        raise failure_of(error) from error
    chosen = Format.JSON if as_json else chosen_format(ctx, output) or Format.TABLE
    if chosen is Format.JSON:
        print_json(report.result())
        return
    say(", ".join(f"{name}: {value}" for name, value in report.result()["machine"].items()))
    print_list([(cells, None) for cells in report.cells()], COLUMNS, Format.TABLE)
