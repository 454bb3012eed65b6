"""How a command reaches envd in a sandbox: through the server, waking the sandbox if it is paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.cli.api import ApiClient
from aenv.cli.errors import ApiError, say
from aenv.errors import AenvError
from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient

KEEPALIVE = 60.0
"""Seconds between the signs of life while a shell or a command is open."""
_AHEAD = 180
"""Seconds that a sandbox in use has at least until its deadline."""


@asynccontextmanager
async def guest(api: ApiClient, sandbox_id: str, *, user: str | None = None) -> AsyncIterator[EnvdClient]:
    """envd of a sandbox. A paused sandbox is resumed first, which is said on standard error."""
    found = await api.info(sandbox_id)
    token = found.access_token
    if found.state == "paused":
        say(f"{sandbox_id} is paused: resuming it")
        token = (await api.connect(sandbox_id)).access_token
    async with client_of(api, sandbox_id, token, user=user) as client:
        yield client


def client_of(api: ApiClient, sandbox_id: str, token: str | None, *, user: str | None = None) -> EnvdClient:
    """The client of a running sandbox's envd; the caller closes it."""
    return EnvdClient(
        api.connection.data_url(sandbox_id),
        token=token,
        headers={"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": str(ENVD_PORT)},
        user=user,
    )


async def keep_alive(api: ApiClient, sandbox_id: str) -> None:
    """Put the sandbox's deadline off for as long as this runs; ends when the sandbox has."""
    while True:
        try:
            await api.refresh(sandbox_id, _AHEAD)
        except ApiError as error:
            if error.status == 404:
                return
        except AenvError:
            pass  # A server that restarts: the next sign of life may get through.
        await asyncio.sleep(KEEPALIVE)


async def state_of(api: ApiClient, sandbox_id: str) -> str | None:
    """`running`, `paused`, None if the sandbox is gone, `unknown` if the server doesn't say."""
    try:
        return (await api.info(sandbox_id)).state
    except ApiError as error:
        return None if error.status == 404 else "unknown"
    except AenvError:
        return "unknown"
