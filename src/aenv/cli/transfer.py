"""The command `aenv cp`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from aenv.cli.access import guest, keep_alive
from aenv.cli.context import api, run
from aenv.cli.download import download
from aenv.cli.errors import CommandError, say, usage
from aenv.cli.options import UserOption
from aenv.cli.progress import Meter
from aenv.cli.terminal import beside
from aenv.cli.upload import upload

_REMOTE = re.compile(r"([a-z0-9]{2,40}):(.*)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """One end of a copy: a path here, or in a sandbox."""

    sandbox: str | None
    path: str


def parse_place(text: str) -> Place:
    """`ID:path` is in a sandbox, anything else is here; a local name with a colon is written `./a:b`."""
    if not text:
        raise usage("an empty path names nothing")
    match = _REMOTE.fullmatch(text)
    if match is None:
        return Place(None, text)
    return Place(match[1], match[2] or "~")


def cp(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="What to copy.", show_default=False)],
    destination: Annotated[str, typer.Argument(metavar="DST", help="Where to.", show_default=False)],
    user: UserOption = None,
) -> None:
    """Copy a file or a folder with all in it, into a sandbox or out of it.

    One end is ID:PATH; relative paths there begin at the user's home. As with
    cp: into a folder that exists, SRC is put under its own name; SRC/. is what
    is in SRC. Symbolic links inside a folder are left out. Files are
    executable where they were.

    \b
    aenv cp model.bin ID:/srv/
    aenv cp ./data ID:/home/user/data
    aenv cp ID:/var/log/. ./logs
    """
    start, end = parse_place(source), parse_place(destination)

    async def work(sandbox: str) -> Meter:
        async with (
            api(ctx) as client,
            guest(client, sandbox, user=user) as envd,
            beside(keep_alive(client, sandbox)),
        ):
            if start.sandbox is None:
                return await upload(envd, start.path, end.path)
            return await download(envd, start.path, end.path)

    if start.sandbox is not None and end.sandbox is not None:
        raise usage("both ends are in sandboxes", hint="Copy to a local file first.")
    sandbox = start.sandbox or end.sandbox
    if sandbox is None:
        raise usage("neither end is in a sandbox", hint="Write the sandbox's end as ID:PATH.")
    try:
        meter = run(work(sandbox))
    except OSError as error:
        raise CommandError(f"{error.filename or source}: {error.strerror or error}") from error
    say(f"Copied {meter.summary()}")
