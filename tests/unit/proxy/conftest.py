"""A proxy and a client session for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.unit.proxy.support import Proxy, running_proxy


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A running proxy without a domain."""
    async with running_proxy() as started:
        yield started


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client that leaves bodies as they are."""
    async with aiohttp.ClientSession(auto_decompress=False) as opened:
        yield opened
