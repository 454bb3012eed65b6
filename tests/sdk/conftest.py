"""One server for all tests of the SDKs; its base template is kept between runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sdk.client import Client, Loop
from tests.server import Server, free_port, home, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with real VMs, at an address and by a domain."""
    name = os.environ.get("AENV_TEST_HOME", "sdk")  # a run within a run needs one of its own
    with running_server(home(name), domain=f"sb.test:{free_port()}", metrics_interval=3) as server:
        yield server


@pytest.fixture(scope="module", params=["sync", pytest.param("async", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    """The Python SDK, each half of it once."""
    if request.param == "sync":
        yield Client(server, None)
        return
    with Loop() as loop:
        yield Client(server, loop)


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Any]:
    """One sandbox for all tests of a module."""
    sandbox = client.create(envs={"GREETING": "hello"}, metadata={"purpose": "a b&c=d"})
    yield sandbox
    sandbox.kill()
