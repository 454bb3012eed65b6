"""Options that several commands share. Imports little, as `aenv --help` needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from aenv.cli.config import Flags
from aenv.cli.errors import usage


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True)
class Globals:
    """The options before the command's name."""

    flags: Flags
    output: Format | None


OutputOption = Annotated[
    Format | None,
    typer.Option("--output", "-o", help="Format of results; by default a table on a terminal, else JSON."),
]
SandboxArgument = Annotated[str, typer.Argument(metavar="ID", help="The sandbox.", show_default=False)]
SandboxesArgument = Annotated[
    list[str], typer.Argument(metavar="ID...", help="The sandboxes.", show_default=False)
]
UserOption = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="User in the sandbox.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment variable; repeatable.")
]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", "-m", metavar="K=V", help="Label; repeatable.")
]


def chosen_format(ctx: typer.Context, output: Format | None) -> Format | None:
    """The format asked for: after the command's name, or before it."""
    given: Globals = ctx.obj
    return output or given.output


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`K=V` arguments as a dict. Raises CommandError for one without `=` or without a name."""
    found = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise usage(f"{option} takes NAME=VALUE, not {item!r}")
        found[key] = value
    return found
