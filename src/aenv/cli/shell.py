"""The commands `aenv start` and `aenv connect`."""

from __future__ import annotations

from typing import Annotated

import typer

from aenv.cli.access import client_of, guest
from aenv.cli.context import api, run
from aenv.cli.errors import say
from aenv.cli.options import (
    EnvOption,
    Format,
    MetadataOption,
    OutputOption,
    SandboxArgument,
    UserOption,
    chosen_format,
    pairs,
)
from aenv.cli.output import print_json, print_line
from aenv.cli.session import need_terminal, open_shell


def start(
    ctx: typer.Context,
    template: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A template or a snapshot.", show_default=False)
    ],
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Only print the sandbox's id.")] = False,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECS", help="Seconds to its deadline.")] = 300,
    env: EnvOption = None,
    metadata: MetadataOption = None,
    auto_pause: Annotated[
        bool | None,
        typer.Option(
            "--auto-pause/--no-auto-pause",
            help="At the deadline pause it, or delete it. By default as the server is set.",
            show_default=False,
        ),
    ] = None,
    user: UserOption = None,
    output: OutputOption = None,
) -> None:
    """Start a sandbox and open a shell in it. The sandbox goes on when the shell ends.

    The deadline is put off while the shell is open.

    \b
    aenv start base
    id=$(aenv start base -d --timeout 3600 -e TOKEN=abc -m team=search)
    """
    if not detach:
        need_terminal("start")
    envs, labels = pairs(env, "--env"), pairs(metadata, "--metadata")

    async def work() -> int:
        async with api(ctx) as client:
            made = await client.create(
                template, timeout=timeout, env=envs, metadata=labels, auto_pause=auto_pause
            )
            if detach:
                if chosen_format(ctx, output) is Format.JSON:
                    print_json(made.wire)
                else:
                    print_line(made.sandbox_id)
                return 0
            say(f"Started sandbox {made.sandbox_id}")
            async with client_of(client, made.sandbox_id, made.access_token, user=user) as envd:
                return await open_shell(client, made.sandbox_id, envd)

    raise typer.Exit(run(work()))


def connect(ctx: typer.Context, sandbox: SandboxArgument, user: UserOption = None) -> None:
    """Open a shell in a sandbox, resuming it if it is paused. The sandbox goes on when the shell ends.

    The deadline is put off while the shell is open. If the sandbox is paused meanwhile, the exit code is 130.

    \b
    aenv connect ID
    """
    need_terminal("connect")

    async def work() -> int:
        async with api(ctx) as client, guest(client, sandbox, user=user) as envd:
            return await open_shell(client, sandbox, envd)

    raise typer.Exit(run(work()))
