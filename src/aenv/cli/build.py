"""`aenv build`: a template from a Dockerfile."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from aenv.cli import dockerfile
from aenv.cli.api import Wire
from aenv.cli.archives import Upload
from aenv.cli.build_context import BuildContext
from aenv.cli.build_display import BuildDisplay
from aenv.cli.build_options import (
    AwsOption,
    CpuOption,
    DiskOption,
    ForceOption,
    GcpOption,
    MemoryOption,
    NameOption,
    PasswordOption,
    ReadyOption,
    RegistryUserOption,
    StartOption,
    TagOption,
    registry_login,
    template_name,
)
from aenv.cli.building import build as carry_out
from aenv.cli.context import api, run
from aenv.cli.errors import CommandError, say, usage
from aenv.cli.options import Format, OutputOption, chosen_format
from aenv.cli.output import print_json, print_line
from aenv.cli.template_api import RequestedBuild, TemplateApi, Wanted


@dataclass(frozen=True)
class _Request:
    """What is asked of the server, and the files that go with it, by what a person calls them."""

    recipe: Wire
    uploads: Mapping[str, Upload]


def build(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where COPY takes its files from.", show_default=False)
    ],
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="The Dockerfile; by default DIR/Dockerfile."),
    ] = None,
    build_arg: Annotated[
        list[str] | None,
        typer.Option("--build-arg", metavar="NAME[=VALUE]", help="Value of an ARG; repeatable."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="STAGE", help="The stage to end with.")] = None,
    name: NameOption = None,
    tag: TagOption = None,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    start_cmd: StartOption = None,
    ready_cmd: ReadyOption = None,
    registry_user: RegistryUserOption = None,
    registry_password_stdin: PasswordOption = False,
    registry_aws: AwsOption = None,
    registry_gcp: GcpOption = None,
    no_cache: ForceOption = False,
    output: OutputOption = None,
) -> None:
    """Build a template from a Dockerfile. Prints the name by which sandboxes start from it.

    Without --name it is called as the folder is. CMD and ENTRYPOINT become the
    start command, unless --start-cmd says another; an empty one says none.
    Steps whose results are known aren't done again. Ctrl-C cancels the build.

    \b
    aenv build . && aenv start my-app
    aenv build ./app -f Dockerfile.dev --name app:dev --build-arg VERSION=3 --memory 2048
    """
    wanted = Wanted(name or template_name(folder.resolve().name, str(folder)), tag or (), cpu, memory, disk)
    login = registry_login(registry_user, registry_aws, registry_gcp, password_stdin=registry_password_stdin)
    path = file or folder / "Dockerfile"
    found = dockerfile.read(_text(path), arguments=_arguments(build_arg or (), os.environ), target=target)
    for warning in found.warnings:
        say(f"warning: {warning}")
    chosen = found.start_command if start_cmd is None else start_cmd or None

    async def work(scratch: Path) -> RequestedBuild:
        asked = await asyncio.to_thread(_request, found, BuildContext(folder, path, scratch))
        recipe = asked.recipe | {"fromImageRegistry": login, "force": no_cache}
        recipe |= {"startCmd": chosen, "readyCmd": ready_cmd}
        async with api(ctx) as client:
            with BuildDisplay() as display:
                return await carry_out(TemplateApi(client), display, wanted, recipe, asked.uploads)

    with tempfile.TemporaryDirectory(prefix="aenv-build-") as scratch:
        made = run(work(Path(scratch)))
    if chosen_format(ctx, output) is Format.JSON:
        print_json(made.wire)
    else:
        print_line(made.name)


def _request(found: dockerfile.Recipe, context: BuildContext) -> _Request:
    """Blocking. Raises CommandError."""
    steps: list[Wire] = []
    uploads: dict[str, Upload] = {}
    for number, instruction in enumerate(found.steps, 1):
        if instruction.copied is None:
            steps.append(dict(instruction.wire or {}))
            continue
        copied = instruction.copied
        try:
            upload, source, destination = context.upload(copied, number)
        except OSError as error:
            raise CommandError(f"{error.filename} can't be read: {error.strerror}") from error
        except CommandError as error:
            raise CommandError(f"Dockerfile, line {instruction.line}: {error.message}") from error
        args = [source, destination, copied.owner, copied.mode]
        steps.append({"type": "COPY", "args": args, "filesHash": upload.files_hash})
        uploads[f"files of line {instruction.line}"] = upload
    return _Request({"fromImage": found.image, "dockerDefaults": True, "steps": steps}, uploads)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise usage(f"{path} can't be read: {error.strerror}", hint="Name another with -f.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} isn't text") from error


def _arguments(given: tuple[str, ...] | list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value that the environment has."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
        else:
            raise usage(f"--build-arg {name}: there is no such variable in the environment")
    return found
