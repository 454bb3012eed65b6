"""Commands on templates."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from aenv.cli.api import Wire
from aenv.cli.build_display import BuildDisplay
from aenv.cli.building import every_entry, follow
from aenv.cli.context import api, run
from aenv.cli.errors import usage
from aenv.cli.options import Format, OutputOption, chosen_format
from aenv.cli.output import local_time, print_fields, print_json, print_line, print_list
from aenv.cli.telemetry import Level
from aenv.cli.template_api import RequestedBuild, TemplateApi, TemplateInfo

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="See and change what sandboxes can be started from.",
)

TemplateArgument = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="Its name or id, perhaps with :TAG.", show_default=False)
]

_COLUMNS = ("TEMPLATE ID", "NAMES", "STATUS", "CPU", "MEM (MiB)", "DISK (MiB)", "UPDATED")
_TAG_COLUMNS = ("TAG", "BUILD ID", "ASSIGNED")


@app.command("ls")
@app.command("list", hidden=True)
def ls(ctx: typer.Context, output: OutputOption = None) -> None:
    """List templates.

    \b
    aenv template ls
    """
    found = _with_templates(ctx, lambda templates: templates.list())
    print_list([(_cells(each), each.wire) for each in found], _COLUMNS, chosen_format(ctx, output))


@app.command()
def info(ctx: typer.Context, template: TemplateArgument, output: OutputOption = None) -> None:
    """Show one template and its builds.

    \b
    aenv template info my-app:v1
    """
    found = _with_templates(ctx, lambda templates: templates.info(template))
    fields = [
        *zip(_COLUMNS, _cells(found), strict=True),
        ("STARTED", f"{found.wire['spawnCount']} times"),
        *(("BUILD", _build_line(build)) for build in found.wire.get("builds", ())),
    ]
    print_fields(fields, found.wire, chosen_format(ctx, output))


@app.command()
def logs(
    ctx: typer.Context,
    template: TemplateArgument,
    build: Annotated[
        str | None, typer.Option("--build", metavar="ID", help="Which build; by default the newest.")
    ] = None,
    level: Annotated[Level, typer.Option(help="Only entries of this level and above.")] = Level.INFO,
    output: OutputOption = None,
) -> None:
    """Show the log of a build: of one under way, to its end. Fails if the build did.

    As JSON it is one object a line, of what is there now.

    \b
    aenv template logs my-app
    """

    async def work(known: TemplateApi) -> None:
        chosen = build or await _newest_build(known, template)
        found = RequestedBuild(template, chosen, template, (), {})
        if chosen_format(ctx, output) is Format.JSON:
            for entry in await every_entry(known, found, level):
                print_line(json.dumps(entry, ensure_ascii=False))
            return
        with BuildDisplay(sys.stdout) as display:
            await follow(known, display, found, level=level)

    _with_templates(ctx, work)


async def _newest_build(known: TemplateApi, template: str) -> str:
    """Of a name with a tag, the build that has it."""
    if ":" not in template and (builds := await known.builds(template)):
        return str(builds[0]["buildID"])
    return str((await known.info(template)).wire["buildID"])


@app.command("rm")
@app.command("delete", hidden=True)
def rm(
    ctx: typer.Context,
    templates: Annotated[
        list[str],
        typer.Argument(
            metavar="TEMPLATE...", help="Their names or ids; with :TAG that build alone.", show_default=False
        ),
    ],
) -> None:
    """Delete templates. Sandboxes that were started from them go on.

    \b
    aenv template rm my-app
    aenv template rm my-app:v1
    """

    async def work(known: TemplateApi) -> None:
        for template in templates:
            await known.delete(template)
            print_line(f"Deleted template {template}")

    _with_templates(ctx, work)


@app.command()
def tag(
    ctx: typer.Context,
    template: TemplateArgument,
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG...]", help="Tags for that build.", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tags instead.")] = False,
    output: OutputOption = None,
) -> None:
    """Point tags to a template's build, or remove them; without a tag, list those there are.

    \b
    aenv template tag my-app                   list them
    aenv template tag my-app:v1 stable latest  two more names for the build of v1
    aenv template tag my-app stable --remove
    """
    wanted: Sequence[str] = tags or ()
    if remove and not wanted:
        raise usage("--remove needs the tags to remove")
    if not wanted:
        rows = _with_templates(ctx, lambda known: known.tags(template))
        print_list([(_tag_cells(each), each) for each in rows], _TAG_COLUMNS, chosen_format(ctx, output))
    elif remove:
        _with_templates(ctx, lambda known: known.remove_tags(template, wanted))
        print_line(f"Removed {', '.join(wanted)} from {template}")
    else:
        made = _with_templates(ctx, lambda known: known.assign_tags(template, wanted))
        if chosen_format(ctx, output) is Format.JSON:
            print_json(made)
        else:
            print_line(f"{', '.join(made['tags'])} of {template} is build {made['buildID']}")


@app.command()
def alias(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name.", show_default=False)],
    output: OutputOption = None,
) -> None:
    """Print the id of the template that a name stands for; fails if the name is free.

    \b
    aenv template alias my-app && aenv start my-app
    """
    found = _with_templates(ctx, lambda known: known.by_alias(name))
    if chosen_format(ctx, output) is Format.JSON:
        print_json(found)
    else:
        print_line(found["templateID"])


def _with_templates(ctx: typer.Context, ask: Callable[[TemplateApi], Awaitable[T]]) -> T:
    async def work() -> T:
        async with api(ctx) as client:
            return await ask(TemplateApi(client))

    return run(work())


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


def _tag_cells(assignment: Wire) -> tuple[str, ...]:
    return (assignment["tag"], assignment["buildID"], local_time(assignment["createdAt"]))


def _build_line(build: Wire) -> str:
    return f"{build['buildID']}  {build['status']}  {local_time(build['createdAt'])}"
