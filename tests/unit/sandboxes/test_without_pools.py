"""What a client can see is the same whichever pools there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.errors import AenvError
from aenv.node import Node
from aenv.sandboxes.models import Sandbox
from tests.unit.sandboxes.conftest import Rig, fake_settings

POOLS = ("hot_vms", "bare_vms", "stopped_vms")


async def story(rig: Rig) -> list[Any]:
    """The life of a few sandboxes, as a client sees it: all but the names and times that it was given."""
    seen: list[Any] = []
    service = rig.node.sandboxes

    async def look(sandbox: Sandbox) -> None:
        record = await service.get(sandbox.id)
        seen.append((record.state, record.pause_mode, record.resources, record.metadata, record.env))
        if record.state == "running":
            guest = (await rig.instance(sandbox.id)).guest
            seen.append({each: await rig.read(sandbox.id, each) for each in ("value", "frozen")})
            seen.append(guest.identity["sandboxId"] == guest.identity["hostname"] == sandbox.id)
            seen.append(guest.identity["accessToken"] == record.envd_token)
            seen.append(guest.identity["envVars"])

    async def fails(work: Any) -> None:
        with pytest.raises(AenvError) as failure:
            await work
        seen.append(type(failure.value))

    first = await rig.create(env={"A": "1"}, metadata={"who": "me"}, auto_resume=True)
    others = [await rig.create() for _ in range(4)]
    for number, sandbox in enumerate((first, *others)):
        await rig.put(sandbox.id, "value", number)
        await look(sandbox)
    boot_ids = {await rig.read(each.id, "boot_id") for each in (first, *others)}
    seen.append(len(boot_ids))  # restored, not booted
    for memory in (True, True, False):
        await service.pause(first.id, memory=memory)
        await look(first)
        await fails(service.pause(first.id))
        if memory:
            await service.endpoint(first.id)  # traffic wakes it
        else:
            await service.connect(first.id, 60)
        await look(first)
        seen.append((await rig.read(first.id, "boot_id")) in boot_ids)
    await rig.put(first.id, "value", 7)
    snapshot = await service.snapshot(first.id, "mine")
    children = await service.fork(first.id, 3)
    copies = [await rig.create(template="mine") for _ in range(3)]
    await service.pause(first.id)
    await service.kill(first.id)
    await fails(service.get(first.id))
    for child in (*children, *copies):
        assert isinstance(child, Sandbox)
        await look(child)
        await service.kill(child.id)
    seen.append((snapshot.names, snapshot.is_snapshot))
    for sandbox in others:
        await service.kill(sandbox.id)
    seen.append((await service.census()).sandboxes)
    return seen


async def seen_without(home: Path, *off: str) -> list[Any]:
    settings = fake_settings(home, **dict.fromkeys(off, 0))
    node = Node(settings)
    await node.start()
    try:
        return await story(Rig(node, settings))
    finally:
        await node.stop()


async def test_every_pool_can_be_switched_off(tmp_path: Path) -> None:
    expected = await seen_without(tmp_path / "none")
    for off in (*((pool,) for pool in POOLS), POOLS, ("spare_memory_mib",)):
        assert await seen_without(tmp_path / "-".join(off), *off) == expected, off
