"""Options that `aenv pull` and `aenv build` share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from aenv.cli.api import Wire
from aenv.cli.errors import CommandError, usage

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")

NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME[:TAG]", help="The template's name.", show_default=False)
]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag for the build; repeatable.")
]
CpuOption = Annotated[int | None, typer.Option("--cpu", min=1, metavar="N", help="Virtual CPUs.")]
MemoryOption = Annotated[int | None, typer.Option("--memory", min=128, metavar="MIB", help="Memory.")]
DiskOption = Annotated[int | None, typer.Option("--disk", min=64, metavar="MIB", help="Size of the disk.")]
StartOption = Annotated[
    str | None,
    typer.Option("--start-cmd", metavar="CMD", help="What runs in every sandbox from its start on."),
]
ReadyOption = Annotated[
    str | None,
    typer.Option("--ready-cmd", metavar="CMD", help="A command that succeeds when that one is ready."),
]
ForceOption = Annotated[bool, typer.Option("--no-cache", help="Do every step again.")]
RegistryUserOption = Annotated[
    str | None, typer.Option("--registry-user", metavar="USER", help="Who pulls the image.")
]
PasswordOption = Annotated[
    bool, typer.Option("--registry-password-stdin", help="Read that user's password from standard input.")
]
AwsOption = Annotated[
    str | None,
    typer.Option(
        "--registry-aws",
        metavar="REGION",
        help="Pull from ECR with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
]
GcpOption = Annotated[
    Path | None,
    typer.Option("--registry-gcp", metavar="FILE", help="Pull with the key of a Google service account."),
]


def registry_login(
    user: str | None, aws: str | None, gcp: Path | None, *, password_stdin: bool
) -> Wire | None:
    """The `fromImageRegistry` of a build; None if nobody was named. Raises CommandError."""
    if sum((user is not None, aws is not None, gcp is not None)) > 1:
        raise usage("only one of --registry-user, --registry-aws and --registry-gcp can be given")
    if password_stdin and user is None:
        raise usage("--registry-password-stdin needs --registry-user")
    if user is not None:
        if not password_stdin:
            raise usage(
                "--registry-user needs --registry-password-stdin: others see what is on a command line"
            )
        password = sys.stdin.read().removesuffix("\n").removesuffix("\r")
        if not password:
            raise usage("there is no password on standard input")
        return {"type": "registry", "username": user, "password": password}
    if aws is not None:
        return _aws(aws, os.environ)
    return None if gcp is None else {"type": "gcp", "serviceAccountJson": _gcp(gcp)}


def _aws(region: str, environ: Mapping[str, str]) -> Wire:
    names = {"awsAccessKeyId": "AWS_ACCESS_KEY_ID", "awsSecretAccessKey": "AWS_SECRET_ACCESS_KEY"}
    if missing := [name for name in names.values() if not environ.get(name)]:
        raise usage(f"--registry-aws needs {' and '.join(missing)} in the environment")
    return {"type": "aws", "awsRegion": region, **{key: environ[name] for key, name in names.items()}}


def _gcp(path: Path) -> str:
    try:
        text = path.read_text()
        json.loads(text)
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is no key of a service account: it isn't JSON") from error
    return text


def template_name(text: str, source: str) -> str:
    """A template's name made of `text`. Raises a usage error about `source` if nothing of it is left."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    if not name:
        raise usage(f"{source} gives no name for the template", hint="Say one with --name.")
    return name
