"""The commands `aenv server` and `aenv setup`. Their options are the server's settings."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from aenv.cli.errors import CommandError, failure_of, usage
from aenv.errors import AenvError
from aenv.settings import Settings

_SERVER_HELP = """Run the server on this machine, until SIGINT or SIGTERM.

Every option can be set as the environment variable in brackets too.

\b
aenv server
aenv server --port 9000 --home /srv/aenv
"""

_SETUP_HELP = """Prepare the guest kernel and the base template, so that the first server start is quick.

\b
aenv setup
"""


def server(ctx: typer.Context) -> None:
    """Run the server on this machine."""
    _with_settings("server", _SERVER_HELP, ctx.args, _serve)


def setup(ctx: typer.Context) -> None:
    """Prepare this machine's guest kernel and base template."""
    _with_settings("setup", _SETUP_HELP, ctx.args, _prepare)


def _serve(settings: Settings) -> None:
    # Found when called: the server's modules are the largest part of the program.
    import_module("aenv.api.server").run(settings)


def _prepare(settings: Settings) -> None:
    prepare = import_module("aenv.node").prepare
    progress = import_module("aenv.images.progress").RichProgress()
    asyncio.run(prepare(settings, progress))
    sys.stdout.write("Ready: `aenv server` starts at once.\n")


def _with_settings(
    name: str, help_text: str, arguments: list[str], action: Callable[[Settings], None]
) -> None:
    """Parse `arguments` as settings and act on them."""
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    def entry(**given: Any) -> None:
        chosen = {key: value for key, value in given.items() if value is not None}
        try:
            settings = Settings(**chosen)
        except (ValidationError, SettingsError) as error:
            raise settings_failure(error) from error
        try:
            action(settings)
        except AenvError as error:
            raise failure_of(error) from error

    entry.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(field, about) for field, about in Settings.model_fields.items()]
    )
    entry.__annotations__ = {}
    command.command(name, help=help_text)(entry)
    command(arguments, prog_name=f"aenv {name}", standalone_mode=False)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The command line's option for a setting: a text that pydantic checks, or a switch."""
    flag = f"--{name.replace('_', '-')}"
    default = "unset" if field.default is None else str(field.default)
    about = f"{field.description} [AENV_{name.upper()}; default: {default}]".replace("[", "\\[")
    if field.annotation is bool:
        kind: Any = Annotated[
            bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=about, show_default=False)
        ]
    else:
        kind = Annotated[
            str | None, typer.Option(flag, help=about, metavar=_metavar(field), show_default=False)
        ]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _metavar(field: FieldInfo) -> str:
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    return "N" if field.annotation is int else "TEXT"


def settings_failure(error: ValidationError | SettingsError) -> CommandError:
    """The failure that says which option or variable can't be used, and why."""
    if isinstance(error, SettingsError):
        return usage(str(error))
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    flag, variable = f"--{name.replace('_', '-')}", f"AENV_{name.upper()}"
    return usage(f"{flag} ({variable}): {first['msg']}, not {first.get('input')!r}")
