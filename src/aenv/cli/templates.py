"""Commands on templates."""

from __future__ import annotations

import typer

from aenv.cli.api import TemplateInfo
from aenv.cli.context import api, run
from aenv.cli.options import OutputOption, chosen_format
from aenv.cli.output import local_time, print_list

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="See what sandboxes can be started from.",
)

_COLUMNS = ("TEMPLATE ID", "NAMES", "STATUS", "CPU", "MEM (MiB)", "DISK (MiB)", "UPDATED")


@app.callback()
def group() -> None:
    """Makes this a group although it has one command."""


@app.command("ls")
@app.command("list", hidden=True)
def ls(ctx: typer.Context, output: OutputOption = None) -> None:
    """List templates.

    \b
    aenv template ls
    """

    async def work() -> list[TemplateInfo]:
        async with api(ctx) as client:
            return await client.templates()

    rows = [(_cells(template), template.wire) for template in run(work())]
    print_list(rows, _COLUMNS, chosen_format(ctx, output))


def _cells(template: TemplateInfo) -> tuple[str, ...]:
    return (
        template.template_id,
        ", ".join(template.names),
        template.status,
        str(template.cpu_count),
        str(template.memory_mib),
        str(template.disk_mib),
        local_time(template.updated_at),
    )
