"""Snapshots of what was started from snapshots, and so on: they stand on few files, and lose none."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient
from aenv.node import Node
from aenv.runtimes.qemu import compaction
from aenv.runtimes.qemu.layers import DiskLayers
from aenv.sandboxes import activity
from aenv.sandboxes.models import CreateSandbox, Sandbox
from aenv.templates import store
from tests.vm.apart import Parts
from tests.vm.world import copy_home

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(600)]

GENERATIONS = 6
MOST = 2
"""Overlays that a disk stands on before it is compacted; a snapshot on twice as many."""


@pytest.fixture
async def node(
    base: Parts, vm_folder: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    """A node in this process that compacts early."""
    monkeypatch.setattr(compaction, "MAX_OVERLAYS", MOST)
    monkeypatch.setattr(activity, "QUIET_SECONDS", 0.05)
    home = vm_folder / "chains"
    copy_home(base.settings.home, home)
    parts = Parts(base.settings.model_copy(update={"home": home}), base.bundle)
    node = Node(parts.settings, parts.choose)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        shutil.rmtree(home)


@asynccontextmanager
async def _guest(node: Node, sandbox: Sandbox) -> AsyncIterator[EnvdClient]:
    endpoint = await node.sandboxes.endpoint(sandbox.id)
    url = f"http://{endpoint.host}:{ENVD_PORT}"
    async with EnvdClient(url, token=sandbox.envd_token, user="root") as client:
        yield client


async def _check(client: EnvdClient, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        assert b"".join([part async for part in client.files.read(path)]) == content


async def _overlays(node: Node, build_id: str) -> int:
    capture_id = await node.captures._database.run(lambda c: store.capture_of(c, build_id))
    assert capture_id is not None
    return len(DiskLayers.of(await node.captures.get(capture_id)).overlays)


async def test_each_generation_stands_on_few_files_and_has_all_of_them(node: Node) -> None:
    template, files = "base", dict[str, bytes]()
    for generation in range(GENERATIONS):
        sandbox = await node.sandboxes.create(CreateSandbox(template, timeout=600, auto_pause=True))
        async with _guest(node, sandbox) as client:
            await _check(client, files)
            path = f"/root/{generation}"
            files[path] = os.urandom(300_000)
            await client.files.write(path, files[path])
        snapshot = await node.sandboxes.snapshot(sandbox.id, memory=generation % 2 == 0)
        await node.sandboxes.kill(sandbox.id)
        template = snapshot.snapshot_id
        async with asyncio.timeout(60):
            while await _overlays(node, snapshot.build.id) > 2 * MOST:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.05)
    sandbox = await node.sandboxes.create(CreateSandbox(template, timeout=600, auto_pause=True))
    async with _guest(node, sandbox) as client:
        await _check(client, files)
