"""The command `aenv auth`."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import typer

from aenv.cli.api import ApiClient
from aenv.cli.config import (
    DEFAULT_URL,
    Connection,
    Credentials,
    credentials_path,
    load_credentials,
    store_credentials,
)
from aenv.cli.context import run
from aenv.cli.errors import usage
from aenv.cli.options import Globals
from aenv.cli.output import print_line


def auth(ctx: typer.Context) -> None:
    """Store a server's URL and API key in ~/.config/aenv/credentials, once the server accepts them.

    Asks for what --api-url and --api-key before the command's name don't say.

    \b
    aenv auth
    aenv --api-url http://10.0.0.5:8000 --api-key e2b_... auth
    """
    given: Globals = ctx.obj
    path = credentials_path(os.environ)
    stored = load_credentials(path) if path.exists() else None
    url = given.flags.api_url or typer.prompt("Server URL", default=stored.url if stored else DEFAULT_URL)
    url = url.strip().rstrip("/")
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        raise usage(f"{url!r} isn't an http:// or https:// URL")
    key = given.flags.api_key or typer.prompt("API key", hide_input=True)
    key = key.strip()

    async def check() -> None:
        async with ApiClient(Connection(url, key)) as client:
            await client.sandboxes(metadata={})

    run(check())
    store_credentials(path, Credentials(url, key))
    print_line(f"Stored credentials for {url} in {path}")
