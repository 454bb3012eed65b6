"""What the state machine does with a node, wherever that is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aenv.errors import AenvError
from aenv.node import Node
from aenv.sandboxes import store
from aenv.sandboxes.compaction import Compaction
from aenv.sandboxes.models import Endpoint, Sandbox
from aenv.sandboxes.states import State
from tests.lives.failing import failing_transaction

LONG = 3600.0
"""Seconds to a deadline: none comes."""

NOTICED = 10.0
"""Seconds in which the end of a VMM is noticed."""


@dataclass(frozen=True)
class Attempt:
    """An operation on sandboxes, in which a step of the runtime or the nth transaction may fail."""

    operation: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    failure: str | int | None
    order_failure: Callable[[Node, str], None]
    drop_failures: Callable[[Node], None]


async def perform(node: Node, attempt: Attempt) -> Any:
    """The result of the attempt, or its error."""
    failure = attempt.failure
    left = [failure if isinstance(failure, int) else 0]
    if isinstance(failure, int):
        failing_transaction.set(left)
    elif failure is not None:
        attempt.order_failure(node, failure)
    try:
        return await getattr(node.sandboxes, attempt.operation)(*attempt.arguments, **attempt.named)
    except AenvError as error:
        return error
    finally:
        left[0] = 0  # what goes on in the background has the same list
        failing_transaction.set(None)
        await node.sandboxes._core.tasks.drain()
        attempt.drop_failures(node)


async def attempt_anyhow(
    node: Node, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Do it; nobody will hear what came of it."""
    with contextlib.suppress(AenvError):
        await getattr(node.sandboxes, operation)(*arguments, **named)


async def rows(node: Node) -> dict[str, Sandbox]:
    """The records of all sandboxes."""
    found = await node.captures._database.run(lambda c: store.in_states(c, frozenset(State)))
    return {each.id: each for each in found}


async def snapshots(node: Node) -> list[str]:
    """The names of all snapshots."""
    return [each.snapshot_id for each in await node.templates.list(snapshots=True)]


async def row(node: Node, sandbox_id: str) -> Sandbox | None:
    """The record of a sandbox."""
    return await node.captures._database.run(lambda c: store.get(c, sandbox_id))


async def endpoint(node: Node, sandbox_id: str) -> Endpoint:
    """Where a running sandbox is reached."""
    found = node.sandboxes.live_endpoint(sandbox_id)
    assert found is not None, f"sandbox {sandbox_id} can't be reached"
    return found


async def lost(node: Node, sandbox_id: str) -> None:
    """Wait until the end of a sandbox's VMM has been noticed."""
    deadline = time.monotonic() + NOTICED
    while (found := await row(node, sandbox_id)) is None or found.state is not State.LOST:
        assert time.monotonic() < deadline, f"the end of sandbox {sandbox_id} isn't noticed: {found}"
        await asyncio.sleep(0.01)


async def expire(node: Node, sandbox_id: str) -> None:
    """Let the deadline of a running sandbox pass."""
    await node.captures._database.run(
        lambda c: store.change(c, sandbox_id, {State.RUNNING}, end_at=time.time())
    )
    await node.sandboxes._expire(sandbox_id)


async def compact(node: Node, sandbox_id: str) -> None:
    """Tighten what a sandbox has on disk, as happens in quiet moments."""
    await _compaction(node)._compact(sandbox_id)


async def compact_snapshot(node: Node, name: str) -> None:
    """The same for what a snapshot has."""
    await _compaction(node)._compact_build((await node.templates.find(name)).build.id)


def _compaction(node: Node) -> Compaction:
    found = node.sandboxes._core.on_captured.__self__  # type: ignore[attr-defined]
    assert isinstance(found, Compaction)
    return found


async def delete_snapshot(node: Node, name: str) -> AenvError | None:
    """Delete a snapshot, or say why it can't be."""
    try:
        await node.templates.delete(name)
    except AenvError as error:
        return error
    return None


async def meet(node: Node, sandbox_id: str, kinds: list[str]) -> list[Any]:
    """Result or error of each of several requests that come at once."""
    sandboxes = node.sandboxes
    work: dict[str, Callable[[], Any]] = {
        "pause": lambda: sandboxes.pause(sandbox_id),
        "connect": lambda: sandboxes.connect(sandbox_id, LONG),
        "fork": lambda: sandboxes.fork(sandbox_id, 1),
        "kill": lambda: sandboxes.kill(sandbox_id),
    }
    return await asyncio.gather(*(work[kind]() for kind in kinds), return_exceptions=True)
