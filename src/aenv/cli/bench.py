"""The command `aenv bench`."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aenv.bench.pace import Mode, Pace
from aenv.cli.errors import failure_of, say, usage
from aenv.cli.options import Format, OutputOption, chosen_format
from aenv.cli.output import print_json, print_list
from aenv.errors import AenvError


class Area(StrEnum):
    """What can be measured."""

    LIFECYCLE = "lifecycle"
    FORK = "fork"
    DENSITY = "density"
    EXEC = "exec"
    FILES = "files"
    PROXY = "proxy"


RUNS = {
    Area.LIFECYCLE: 8,
    Area.FORK: 5,
    Area.DENSITY: 8,
    Area.EXEC: 50,
    Area.FILES: 5,
    Area.PROXY: 5,
}


def bench(
    ctx: typer.Context,
    *,
    area: Annotated[Area, typer.Argument(help="What to measure.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often; else as suits.")] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="`lifecycle`, `fork`: one at a time (the default), 0.25 s apart, or all runs at once."
        ),
    ] = None,
    engine: Annotated[bool, typer.Option("--engine", help="Print the bare engine's source too.")] = False,
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of a server that isn't running [AENV_HOME]."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Measure this machine, with servers of the benchmark's own. Leave it alone meanwhile.

    Failures count in the column ok/n and are told on standard error. `lifecycle`, `fork` and `density`
    compare with the bare engine: the same files and the same QEMU by hand, without the server.

    \b
    aenv bench lifecycle             create, pause, resume, snapshot, kill
    aenv bench lifecycle --mode burst --runs 8
    aenv bench fork                  16 children of one sandbox
    aenv bench density               memory of idle sandboxes; 200 paused ones
    aenv bench exec                  a command, against envd asked directly
    aenv bench files                 256 MiB up and down, against envd directly
    aenv bench proxy --json          small requests, against nginx
    """
    # Late, as these take a moment to load.
    from aenv.bench.rows import COLUMNS  # noqa: PLC0415
    from aenv.bench.run import PACED, engine_source, run  # noqa: PLC0415

    if mode is not None and area not in PACED:
        raise usage(f"the area {area} has no modes")
    folder = home or Path(os.environ.get("AENV_HOME", "/var/lib/aenv"))
    try:
        report = run(area.value, folder, Pace(mode or Mode.SEQUENTIAL, runs or RUNS[area]), say)
    except AenvError as error:
        raise failure_of(error) from error
    chosen = Format.JSON if as_json else chosen_format(ctx, output) or Format.TABLE
    if chosen is Format.JSON:
        print_json({**report.result(), **({"engine": engine_source()} if engine else {})})
        return
    say(", ".join(f"{name}: {value}" for name, value in report.result()["machine"].items()))
    print_list([(cells, None) for cells in report.cells()], COLUMNS, Format.TABLE)
    if engine:
        sys.stdout.write(f"\n{engine_source()}")
