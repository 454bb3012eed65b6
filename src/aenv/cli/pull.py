"""`aenv pull`: a template from a container image."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from aenv.cli.api import Wire
from aenv.cli.archives import Upload, members_of_folder, upload_of_file, upload_of_members
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
from aenv.cli.building import build
from aenv.cli.context import api, run
from aenv.cli.errors import CommandError, usage
from aenv.cli.options import Format, OutputOption, chosen_format
from aenv.cli.output import print_json, print_line
from aenv.cli.template_api import RequestedBuild, TemplateApi, Wanted

_TAG = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def pull(
    ctx: typer.Context,
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE",
            help="An image on a registry; or, beginning with / or a dot, an archive of one, an OCI layout, "
            "or a root file system as a tar archive.",
            show_default=False,
        ),
    ],
    *,
    name: NameOption = None,
    tag: TagOption = None,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    start_cmd: StartOption = None,
    ready_cmd: ReadyOption = None,
    select: Annotated[
        str | None, typer.Option("--select", metavar="NAME", help="Which image of an archive with several.")
    ] = None,
    rootfs: Annotated[
        bool, typer.Option("--rootfs", help="Take an archive as a root file system, whatever is in it.")
    ] = False,
    registry_user: RegistryUserOption = None,
    registry_password_stdin: PasswordOption = False,
    registry_aws: AwsOption = None,
    registry_gcp: GcpOption = None,
    no_cache: ForceOption = False,
    output: OutputOption = None,
) -> None:
    """Make a template from a container image. Prints the name by which sandboxes start from it.

    Without --name it is called as the image is, with the image's tag as one of its tags.
    What the image would run by itself isn't run: say it with --start-cmd.
    Ctrl-C cancels; layers that were pulled are kept for the next try.

    \b
    aenv pull python:3.12 && aenv start python
    aenv pull ghcr.io/acme/app:v2 --name app --memory 1024
    aenv pull nginx --start-cmd "nginx -g 'daemon off;'" --ready-cmd "curl -s localhost"
    docker save my-image -o image.tar && aenv pull ./image.tar --name my-image
    """
    path = Path(image) if image.startswith(("/", ".")) else None
    if path is None and (select is not None or rootfs):
        raise usage("--select and --rootfs are for archives: their paths begin with / or a dot")
    login = registry_login(registry_user, registry_aws, registry_gcp, password_stdin=registry_password_stdin)
    if path is not None and login is not None:
        raise usage("an archive needs no registry's user")
    wanted_name, tags = (name, []) if name is not None else default_name(image, path)
    wanted = Wanted(wanted_name, [*tags, *(tag or ())], cpu, memory, disk)
    recipe: Wire = {"startCmd": start_cmd, "readyCmd": ready_cmd, "force": no_cache}

    async def work() -> RequestedBuild:
        uploads: dict[str, Upload] = {}
        if path is None:
            recipe.update(fromImage=image, fromImageRegistry=login)
        else:
            uploads[path.name] = upload = await asyncio.to_thread(_archive, path)
            recipe["fromArchive"] = {"filesHash": upload.files_hash, "tag": select, "root": rootfs}
        async with api(ctx) as client:
            with BuildDisplay() as display:
                return await build(TemplateApi(client), display, wanted, recipe, uploads)

    made = run(work())
    if chosen_format(ctx, output) is Format.JSON:
        print_json(made.wire)
    else:
        print_line(made.name)


def default_name(image: str, path: Path | None) -> tuple[str, Sequence[str]]:
    """What a template is called that nobody named, and its tags: `python` and 3.12 of `python:3.12`."""
    if path is not None:
        last, tag = path.resolve().name.partition(".")[0], ""
    else:
        last, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return template_name(last, repr(image)), ["default", tag] if _TAG.fullmatch(tag) else ["default"]


def _archive(path: Path) -> Upload:
    try:
        if path.is_dir():
            return upload_of_members(members_of_folder(path))
        return upload_of_file(path)
    except OSError as error:
        raise CommandError(f"{error.filename or path} can't be read: {error.strerror}") from error
