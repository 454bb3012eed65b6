"""A user's program: lists, tags and snapshots through the E2B SDK, blocking and not.

Runs with every version of the SDK that is supported; it needs no virtual machine.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from datetime import UTC, datetime
from typing import Any

from e2b import AsyncSandbox, AsyncTemplate, Sandbox, SandboxQuery, SandboxState, Template
from e2b.exceptions import SandboxException

METADATA = {"a b": "c&d=e", "ä%20": "100%"}


def pages(paginator: Any) -> list[list[Any]]:
    """Every page of a list."""
    found = []
    while paginator.has_next:
        found.append(paginator.next_items())
    return found


def fails(work: Any, *words: str) -> bool:
    """Whether `work` raises the SDK's exception with all `words`."""
    try:
        work()
    except SandboxException as error:
        return all(word in str(error) for word in words)
    return False


def lists() -> None:
    """Filters, order and pages."""
    began = datetime.now(UTC)
    made = [Sandbox.create("base", metadata=METADATA, timeout=100) for _ in range(3)]
    ids = [sandbox.sandbox_id for sandbox in made]
    assert made[1].beta_pause() if not hasattr(made[1], "pause") else made[1].pause()

    def listed(limit: int | None = None, order: Any = None, **query: Any) -> list[list[str]]:
        paginator = Sandbox.list(SandboxQuery(metadata=METADATA, **query), limit=limit, order=order)
        return [[sandbox.sandbox_id for sandbox in page] for page in pages(paginator)]

    assert listed() == [ids[::-1]]
    assert listed(order="asc", limit=2) == [ids[:2], ids[2:]]
    assert listed(order="desc", limit=2) == [ids[:0:-1], ids[:1]]
    assert listed(state=[SandboxState.PAUSED]) == [ids[1:2]]
    assert listed(state=[SandboxState.RUNNING, SandboxState.PAUSED]) == [ids[::-1]]
    assert listed(template="base", started_after=began) == [ids[::-1]]
    assert listed(template="nix") == [[]]
    assert listed(started_after=datetime(2099, 1, 1, tzinfo=UTC)) == [[]]
    assert fails(lambda: Sandbox.list(next_token="nix").next_items(), "400", "nextToken")
    for sandbox in made:
        sandbox.kill()


def snapshots(sandbox: Any) -> None:
    """Names, pages and deletion."""
    first = sandbox.create_snapshot(name="sdk-first")
    second = sandbox.create_snapshot()
    assert first.names == ["default/sdk-first"]
    assert first.snapshot_id == "default/sdk-first:default"
    found = pages(sandbox.list_snapshots(limit=1))
    assert [[each.snapshot_id for each in page] for page in found] == [
        [second.snapshot_id],
        [first.snapshot_id],
    ]
    for name in ("sdk-first", "default/sdk-first", "default/sdk-first:default"):
        (page,) = pages(Sandbox.list_snapshots(name=name))
        assert [each.snapshot_id for each in page] == [first.snapshot_id]
        Sandbox.create(name, timeout=60).kill()
    for snapshot in (first, second):
        assert Sandbox.delete_snapshot(snapshot.snapshot_id)
        assert not Sandbox.delete_snapshot(snapshot.snapshot_id)


def tags(sandbox: Any) -> None:
    """A name that moves on while a tag stays."""
    sandbox.create_snapshot(name="sdk-tags")
    old = Template.assign_tags("sdk-tags", ["v1", "stable"])
    assert old.tags == ["v1", "stable"]
    sandbox.create_snapshot(name="sdk-tags")
    new = Template.assign_tags("sdk-tags:default", "latest")
    assert new.build_id != old.build_id
    assert {tag.tag: tag.build_id for tag in Template.get_tags("sdk-tags")} == {
        "default": new.build_id,
        "latest": new.build_id,
        "v1": old.build_id,
        "stable": old.build_id,
    }
    Template.remove_tags("default/sdk-tags", ["stable"])
    assert Template.exists("sdk-tags:v1")
    assert not Template.exists("sdk-tags:stable")
    assert not Template.exists("sdk-nix")
    assert fails(lambda: Sandbox.create("sdk-tags:stable"), "404")
    Sandbox.create("default/sdk-tags:v1", timeout=60).kill()
    for work in (
        lambda: Template.remove_tags("sdk-tags", "default"),
        lambda: Template.assign_tags("sdk-nix", "v1"),
    ):
        refusal = ""
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- each version has its own class
            refusal = str(error)
        assert refusal[:3] in {"400", "404"}, refusal
    assert Sandbox.delete_snapshot("sdk-tags")


async def concurrent() -> None:
    """The other half of the SDK."""
    sandbox = await AsyncSandbox.create("base", metadata={"who": "async"}, timeout=60)
    paginator = AsyncSandbox.list(SandboxQuery(metadata={"who": "async"}), limit=1)
    assert [each.sandbox_id for each in await paginator.next_items()] == [sandbox.sandbox_id]
    assert not paginator.has_next
    snapshot = await sandbox.create_snapshot(name="sdk-async")
    assigned = await AsyncTemplate.assign_tags("sdk-async", "v1")
    assert {tag.build_id for tag in await AsyncTemplate.get_tags("sdk-async")} == {assigned.build_id}
    await AsyncTemplate.remove_tags("sdk-async", "v1")
    found = await AsyncSandbox.list_snapshots(name="sdk-async").next_items()
    assert [each.snapshot_id for each in found] == [snapshot.snapshot_id]
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)
    await sandbox.kill()
    if "idempotency_key" in inspect.signature(AsyncSandbox.create).parameters:
        twice = [await AsyncSandbox.create("base", timeout=60, idempotency_key="sdk-async") for _ in range(2)]
        assert len({each.sandbox_id for each in twice}) == 1
        refusal = ""
        try:
            await AsyncSandbox.create("base", timeout=61, idempotency_key="sdk-async")
        except SandboxException as error:
            refusal = str(error)
        assert "422" in refusal
        await twice[0].kill()


if __name__ == "__main__":
    lists()
    source = Sandbox.create("base", timeout=100)
    snapshots(source)
    tags(source)
    source.kill()
    asyncio.run(concurrent())
    # All has been proved. Threads of the older SDK's HTTP library (pyqwest 0.10) now and then crash an
    # interpreter that shuts down ("PyGILState_Release: thread state must be current"), so it doesn't.
    sys.stdout.flush()
    os._exit(0)
