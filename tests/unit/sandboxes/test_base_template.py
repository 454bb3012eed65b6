"""What every sandbox starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.guest.client import EnvdClient
from aenv.node import Node
from aenv.runtimes.fake import FakeInstance
from tests.unit.sandboxes.conftest import fake_settings


async def test_the_guest_rehearses_between_its_freeze_and_its_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        async def watched(*arguments: Any, **options: Any) -> Any:
            result = await method(*arguments, **options)
            done.append(name)
            return result

        monkeypatch.setattr(owner, name, watched)

    for owner, name in ((EnvdClient, "freeze"), (EnvdClient, "warm"), (FakeInstance, "capture")):
        watch(owner, name)
    node = Node(fake_settings(tmp_path / "home", hot_vms=0, bare_vms=0))
    try:
        await node.start()
    finally:
        await node.stop()
    assert done == ["freeze", "warm", "capture"]
