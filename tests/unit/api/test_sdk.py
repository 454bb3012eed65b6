"""The official E2B SDK, unmodified, against the API."""

from __future__ import annotations

from typing import TypedDict

import pytest
from e2b import AsyncSandbox, SandboxNotFoundException, SandboxQuery, SandboxState
from e2b.exceptions import AuthenticationException, SandboxException

from tests.unit.api.support import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Access(TypedDict):
    """What every call of the SDK needs."""

    api_url: str
    sandbox_url: str
    api_key: str


@pytest.fixture
def access(server: Server) -> Access:
    """Access to the server."""
    return {"api_url": server.url, "sandbox_url": server.url, "api_key": server.key}


async def test_life_of_a_sandbox(access: Access) -> None:
    sandbox = await AsyncSandbox.create("base", timeout=60, metadata={"who": "sdk & co"}, **access)
    assert await sandbox.is_running()
    await sandbox.set_timeout(120)
    info = await sandbox.get_info()
    assert info.metadata == {"who": "sdk & co"}
    assert info.state is SandboxState.RUNNING
    query = SandboxQuery(metadata={"who": "sdk & co"}, state=[SandboxState.RUNNING])
    found = await AsyncSandbox.list(query=query, limit=1, **access).next_items()
    assert [listed.sandbox_id for listed in found] == [sandbox.sandbox_id]

    assert await sandbox.pause()
    assert not await sandbox.pause()
    assert not await sandbox.is_running()
    assert (await sandbox.connect(timeout=60)).sandbox_id == sandbox.sandbox_id
    assert await sandbox.is_running()

    assert await sandbox.kill()
    assert not await sandbox.kill()
    assert not await sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect(sandbox.sandbox_id, **access)


async def test_fork_and_snapshot(access: Access) -> None:
    sandbox = await AsyncSandbox.create("base", **access)
    children = await sandbox.fork(count=2)
    assert len(children) == 2
    snapshot = await sandbox.create_snapshot(name="sdk")
    listed = await AsyncSandbox.list_snapshots(sandbox.sandbox_id, **access).next_items()
    assert [each.snapshot_id for each in listed] == [snapshot.snapshot_id]
    copy = await AsyncSandbox.create(snapshot.snapshot_id, **access)
    assert await copy.is_running()
    await copy.kill()
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id, **access)
    assert not await AsyncSandbox.delete_snapshot(snapshot.snapshot_id, **access)


async def test_errors_are_the_sdks_own(access: Access) -> None:
    with pytest.raises(SandboxException, match="400: timeout"):
        await AsyncSandbox.create("base", timeout=-1, **access)
    with pytest.raises(SandboxException, match="404"):
        await AsyncSandbox.create("nix", **access)
    wrong: Access = {**access, "api_key": "e2b_" + "0" * 40}
    with pytest.raises(AuthenticationException):
        await AsyncSandbox.create("base", **wrong)
