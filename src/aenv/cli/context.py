"""How a command reaches the server and runs its coroutine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from aenv.cli.api import ApiClient
from aenv.cli.config import Connection, credentials_path, load_credentials, resolve
from aenv.cli.errors import CommandError, failure_of
from aenv.cli.options import Globals
from aenv.errors import AenvError

T = TypeVar("T")


def connection(ctx: typer.Context) -> Connection:
    """The server that the options, the environment and the stored credentials name."""
    given: Globals = ctx.obj
    return resolve(given.flags, os.environ, load_credentials(credentials_path(os.environ)))


def api(ctx: typer.Context) -> ApiClient:
    """A client of that server, to be entered."""
    return ApiClient(connection(ctx))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end. Raises CommandError for every error a user can meet."""
    try:
        return asyncio.run(work)
    except AenvError as error:
        raise failure_of(error) from error
    except BrokenPipeError:
        # Whoever read our output is gone: end as SIGPIPE would end a program.
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except asyncio.CancelledError as error:
        raise CommandError("interrupted", exit_code=130) from error
