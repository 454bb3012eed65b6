"""One server on the fake runtime for each module of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.unit.api.support import Server, fake_settings, running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A running server; tests of a module share it."""
    async with running(fake_settings(tmp_path_factory.mktemp("home"), max_fork=3)) as started:
        yield started
