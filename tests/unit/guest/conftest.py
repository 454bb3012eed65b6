"""Fixtures of the tests of the client of envd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aenv.guest.client import EnvdClient
from tests.unit.guest.support import envd_binary, envd_url

__all__ = ["client", "envd_binary", "envd_url"]


@pytest.fixture
async def client(envd_url: str) -> AsyncIterator[EnvdClient]:
    """A client of a real envd, as root."""
    async with EnvdClient(envd_url, user="root") as client:
        await client.wait_healthy(10)
        yield client
