"""One server for all tests of the SDKs; its base template is kept between runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server import STATE, Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with real VMs."""
    with running_server(STATE / "home") as server:
        yield server
