"""Logins of the host's docker configuration: `docker login` and credential helpers.

Source: https://docs.docker.com/reference/cli/docker/login/ and
https://github.com/docker/docker-credential-helpers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aenv.errors import HostNotReady
from aenv.images.auth import Login
from aenv.images.reference import DOCKER_HUB
from aenv.tasks import finish

_HUB_KEY: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HELPER_SECONDS: Final = 30.0
_TOKEN_USER: Final = "<token>"  # noqa: S105 - a helper's way to say that the secret is an identity token
_NOT_FOUND: Final = "credentials not found"


class _Auth(BaseModel):
    model_config = ConfigDict(extra="ignore")

    auth: str = Field("", repr=False)
    username: str = ""
    password: str = Field("", repr=False)
    identity_token: str = Field("", alias="identitytoken", repr=False)
    registry_token: str = Field("", alias="registrytoken", repr=False)


class _Config(BaseModel):
    model_config = ConfigDict(extra="ignore")

    auths: dict[str, _Auth] = Field(default_factory=dict)
    helpers: dict[str, str] = Field(default_factory=dict, alias="credHelpers")
    store: str = Field("", alias="credsStore")


class _Secret(BaseModel):
    username: str = Field(alias="Username")
    secret: str = Field(alias="Secret", repr=False)


def default_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where docker's own client looks."""
    folder = environment.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


async def find_login(registry: str, path: Path) -> Login | None:
    """Who the configuration says pulls from `registry`; None if it says nothing, or isn't there.

    Raises HostNotReady if the file can't be used, or a credential helper fails.
    """
    try:
        config = _Config.model_validate_json(await asyncio.to_thread(path.read_bytes))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        # Not the error's own text: it may have a password in it.
        raise HostNotReady(
            f"the docker configuration {path} can't be read ({type(error).__name__})"
        ) from error
    key = _HUB_KEY if registry == DOCKER_HUB else registry
    helper = next((name for host, name in config.helpers.items() if _matches(host, registry)), config.store)
    if helper:
        login = await _ask_helper(helper, key)
        if login is not None:
            return login
    found = next((auth for host, auth in config.auths.items() if _matches(host, registry)), None)
    return None if found is None else _decoded(found, path)


def _kind(error: Exception) -> str:
    return (
        error.strerror or "no access"
        if isinstance(error, OSError)
        else "it is not the JSON that docker writes"
    )


def _matches(key: str, registry: str) -> bool:
    """Keys are hosts, or URLs as older clients have written them."""
    host = key.partition("://")[2] or key
    host = host.partition("/")[0].lower()
    return host == registry.lower() or (registry == DOCKER_HUB and host == "index.docker.io")


def _decoded(found: _Auth, path: Path) -> Login | None:
    username, password = found.username, found.password
    if found.auth:
        try:
            text = base64.b64decode(found.auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        username, colon, password = text.partition(":")
        if not colon:
            raise HostNotReady(f"an `auth` in the docker configuration {path} is not USER:PASSWORD in base64")
    login = Login(username, password.rstrip("\0"), found.identity_token, found.registry_token)
    return None if login == Login() else login


async def _ask_helper(name: str, key: str) -> Login | None:
    program = f"docker-credential-{name}"
    if _HELPER.fullmatch(name) is None:
        raise HostNotReady(f"the docker configuration names {name!r} as a credential helper: that is no name")
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise HostNotReady(f"{program}, which the docker configuration names, can't be started") from error
    try:
        async with asyncio.timeout(_HELPER_SECONDS):
            output, _ = await process.communicate(key.encode())
    except TimeoutError as error:
        raise HostNotReady(f"{program} gave no answer within {_HELPER_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await finish(process.wait())
    if process.returncode != 0:
        # Helpers say on their standard output what went wrong, and only this one is no failure.
        if _NOT_FOUND in output.decode(errors="replace"):
            return None
        raise HostNotReady(f"{program} failed with exit status {process.returncode}")
    return _helper_login(program, output)


def _helper_login(program: str, output: bytes) -> Login:
    try:
        given = _Secret.model_validate(json.loads(output))
    except (ValueError, ValidationError):
        raise HostNotReady(f"{program} gave an answer that is no login") from None
    if given.username == _TOKEN_USER:
        return Login(identity_token=given.secret)
    return Login(given.username, given.secret)
