"""Commands on snapshots."""

from __future__ import annotations

from typing import Annotated

import typer

from aenv.cli.api import SnapshotInfo
from aenv.cli.context import api, run
from aenv.cli.options import Format, OutputOption, SandboxArgument, chosen_format
from aenv.cli.output import print_json, print_line, print_list

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keep states to start from: `aenv start SNAPSHOT` begins where it was taken.",
)

_COLUMNS = ("SNAPSHOT ID", "NAMES")


@app.command()
def create(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    name: Annotated[str | None, typer.Option(help="A name to start it by.")] = None,
    output: OutputOption = None,
) -> None:
    """Keep a sandbox's memory and disk as they are now; it goes on. Prints the snapshot's id.

    \b
    aenv snapshot create ID --name ready
    aenv start ready
    """

    async def work() -> SnapshotInfo:
        async with api(ctx) as client:
            return await client.create_snapshot(sandbox, name)

    made = run(work())
    if chosen_format(ctx, output) is Format.JSON:
        print_json(made.wire)
    else:
        print_line(made.snapshot_id)


@app.command("ls")
@app.command("list", hidden=True)
def ls(
    ctx: typer.Context,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox-id", metavar="ID", help="Only those of this sandbox.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """List snapshots."""

    async def work() -> list[SnapshotInfo]:
        async with api(ctx) as client:
            return await client.snapshots(sandbox)

    rows = [((found.snapshot_id, ", ".join(found.names)), found.wire) for found in run(work())]
    print_list(rows, _COLUMNS, chosen_format(ctx, output))


@app.command("rm")
@app.command("delete", hidden=True)
def rm(
    ctx: typer.Context,
    snapshots: Annotated[
        list[str], typer.Argument(metavar="SNAPSHOT...", help="Their ids or names.", show_default=False)
    ],
) -> None:
    """Delete snapshots."""

    async def work() -> None:
        async with api(ctx) as client:
            for snapshot in snapshots:
                await client.delete_template(snapshot)
                print_line(f"Deleted snapshot {snapshot}")

    run(work())
