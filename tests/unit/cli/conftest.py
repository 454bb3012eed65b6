"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from aenv.guest.client import EnvdClient
from tests.unit.api.support import Server, fake_settings, running
from tests.unit.cli.support import Cli, ControlPlane
from tests.unit.guest.support import envd_binary, envd_url

__all__ = ["cli", "control", "envd_binary", "envd_url"]


@pytest.fixture
async def control(envd_url: str) -> AsyncIterator[ControlPlane]:
    """A control plane with a running sandbox i1 and a paused one i2, both a real envd on this host."""
    plane = ControlPlane(envd_url)
    runner = web.AppRunner(plane.application(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        plane.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with EnvdClient(envd_url) as envd:
            await envd.wait_healthy(10)
        yield plane
    finally:
        await runner.cleanup()


@pytest.fixture
def cli(control: ControlPlane, tmp_path: Path) -> Cli:
    """The command, set to that control plane."""
    home = tmp_path / "home"
    home.mkdir()
    return Cli(control.url, home)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A whole server on the fake runtime; the tests of a module share it."""
    async with running(fake_settings(tmp_path_factory.mktemp("home"), hot_vms=0)) as started:
        yield started


@pytest.fixture
def aenv(server: Server, tmp_path: Path) -> Cli:
    """The command, set to that server."""
    home = tmp_path / "home"
    home.mkdir()
    return Cli(server.url, home, server.key)
