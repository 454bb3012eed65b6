"""The command line's frame: global options, and the commands, each loaded when it is used.

Loading them late keeps `aenv --help` quick: the HTTP client and the server's settings take longer to
import than everything else together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from aenv import __version__
from aenv.cli.config import Flags
from aenv.cli.options import Globals, OutputOption


@dataclass(frozen=True)
class Lazy:
    """Where a command is: a function, or a Typer with several, in a module of this package."""

    module: str
    name: str
    summary: str
    settings: dict[str, Any] = field(default_factory=dict)
    hidden: bool = False


_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

COMMANDS = {
    "start": Lazy("shell", "start", "Start a sandbox and open a shell in it."),
    "connect": Lazy("shell", "connect", "Open a shell in a sandbox."),
    "cn": Lazy("shell", "connect", "Short for connect.", hidden=True),
    "exec": Lazy("execute", "execute", "Run a command in a sandbox.", settings=_PASS_ON),
    "cp": Lazy("transfer", "cp", "Copy files and folders into or out of a sandbox."),
    "ls": Lazy("sandboxes", "ls", "List sandboxes."),
    "list": Lazy("sandboxes", "ls", "Same as ls.", hidden=True),
    "info": Lazy("sandboxes", "info", "Show one sandbox."),
    "pause": Lazy("sandboxes", "pause", "Pause sandboxes: memory and disk are kept, nothing runs."),
    "resume": Lazy("sandboxes", "resume", "Resume paused sandboxes."),
    "fork": Lazy("sandboxes", "fork", "Make independent copies of a running sandbox."),
    "rollback": Lazy("sandboxes", "rollback", "Put a sandbox back to one of its snapshots."),
    "logs": Lazy("telemetry", "logs", "Show what happened in a sandbox."),
    "stats": Lazy("telemetry", "stats", "Show what a sandbox uses of its machine."),
    "timeout": Lazy("sandboxes", "timeout", "Set how long a sandbox goes on from now."),
    "rm": Lazy("sandboxes", "rm", "Delete sandboxes."),
    "delete": Lazy("sandboxes", "rm", "Same as rm.", hidden=True),
    "snapshot": Lazy("snapshots", "app", "Keep states to start from."),
    "template": Lazy("templates", "app", "See and change what sandboxes can be started from."),
    "pull": Lazy("pull", "pull", "Make a template from a container image."),
    "build": Lazy("build", "build", "Build a template from a Dockerfile."),
    "auth": Lazy("auth", "auth", "Store a server's URL and API key."),
    "server": Lazy("server", "server", "Run the server on this machine.", settings=_RAW),
    "certs": Lazy("certs", "certs", "Make or renew the certificates of this machine's server."),
    "bench": Lazy("bench", "bench", "Measure how fast this machine is."),
    "setup": Lazy("server", "setup", "Prepare this machine's guest kernel and base template.", settings=_RAW),
}


class LazyGroup(TyperGroup):
    """Lists commands by their summaries; imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, lazy in COMMANDS.items():
            self.add_command(TyperCommand(name, help=lazy.summary, hidden=lazy.hidden), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the real command in the place of its listing."""
        if args and args[0] in COMMANDS:
            self.add_command(load(args[0]), args[0])
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """Import a command."""
    lazy = COMMANDS[name]
    found = getattr(import_module(f"aenv.cli.{lazy.module}"), lazy.name)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(name, short_help=lazy.summary, context_settings=lazy.settings)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"aenv {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    *,
    api_url: Annotated[str | None, typer.Option(metavar="URL", help="The server (E2B_API_URL).")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="Its API key (E2B_API_KEY).")] = None,
    sandbox_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where sandboxes are reached (E2B_SANDBOX_URL).")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Domain of API and sandboxes (E2B_DOMAIN).")
    ] = None,
    output: OutputOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Agent environments: microVM sandboxes that start from snapshots, pause, resume and fork.

    The server and the key come from these options, else from the environment
    variables in brackets that the E2B SDKs read too, else from `aenv auth`,
    else it is this machine's own server.

    \b
    aenv server                          run a server on this machine
    aenv start base                      start a sandbox and open a shell in it
    id=$(aenv start base -d)             start one in the background
    aenv exec $id python3 -c 'print(6*7)'
    aenv cp ./data $id:/home/user/       copy a folder into it
    aenv fork $id -n 4                   four independent copies
    aenv pull python:3.12                a template from an image
    aenv build ./my-app                  or from a Dockerfile
    aenv pause $id                       keep it, memory and all
    aenv rm $id                          delete it
    """
    del version
    ctx.obj = Globals(Flags(api_url, api_key, sandbox_url, domain), output)
