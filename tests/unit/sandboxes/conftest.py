"""A whole node on the fake runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aenv.guest import ENVD_PORT
from aenv.network.fake import FakeSlotPool
from aenv.node import Node
from aenv.runtimes.fake import FakeInstance, FakeRuntime
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.sandboxes.pools import FLOOR
from aenv.settings import Settings


@dataclass
class Rig:
    """A node with the handles that tests need."""

    node: Node
    settings: Settings

    @property
    def runtime(self) -> FakeRuntime:
        assert isinstance(self.node.runtime, FakeRuntime)
        return self.node.runtime

    @property
    def network(self) -> FakeSlotPool:
        assert isinstance(self.node.network, FakeSlotPool)
        return self.node.network

    async def pools_are_filled(self) -> None:
        """Wait until there are as many hot VMs as there should be."""

        async def filled() -> bool:
            hot = self.node.starter.hot
            return hot.count() == hot.wanted() == min(self.settings.hot_vms, FLOOR)

        await eventually(filled, 10)

    async def create(self, **changes: Any) -> Sandbox:
        request = {"template": "base", "timeout": 60.0, "auto_pause": True, **changes}
        return await self.node.sandboxes.create(CreateSandbox(**request))

    async def instance(self, sandbox_id: str) -> FakeInstance:
        sandbox = await self.node.sandboxes.get(sandbox_id)
        assert sandbox.instance_id is not None
        return self.runtime.instances[sandbox.instance_id]

    async def put(self, sandbox_id: str, key: str, value: Any, where: str = "memory") -> None:
        url = await self._url(sandbox_id, key, where)
        async with aiohttp.ClientSession() as session, session.put(url, json=value) as response:
            assert response.status == 204

    async def read(self, sandbox_id: str, key: str, where: str = "memory") -> Any:
        url = await self._url(sandbox_id, key, where)
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.json()

    async def _url(self, sandbox_id: str, key: str, where: str) -> str:
        endpoint = await self.node.sandboxes.endpoint(sandbox_id)
        return f"http://{endpoint.host}:{ENVD_PORT}/{where}/{key}"


def fake_settings(home: Path, **changes: Any) -> Settings:
    """Settings of a fake node with home folder `home`."""
    small = {"reserve_mib": 1}  # homes are copied in some tests
    return Settings(home=home, runtime="fake", port=0, **(small | changes))


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> None:
    """Wait until `condition` holds, failing after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await condition():
        assert loop.time() < end, "it didn't come true in time"
        await asyncio.sleep(0.01)


@pytest.fixture(params=["pools", "no pools"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """A started node, with its pools and with all of them off; checked for leaks at its end."""
    off = {"hot_vms": 0, "bare_vms": 0, "stopped_vms": 0} if request.param == "no pools" else {}
    settings = fake_settings(tmp_path / "home", **off)
    node = Node(settings)
    await node.start()
    rig = Rig(node, settings)
    yield rig
    await node.stop()
    assert not rig.runtime.instances
    assert not rig.network.in_use
    assert not list(settings.workspace_dir.iterdir())
