"""Lists of sandboxes, with every filter."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from e2b import SandboxException, SandboxQuery, SandboxState

from tests.sdk.client import Client

pytestmark = [pytest.mark.vm, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def group(client: Client) -> Iterator[tuple[dict[str, str], list[Any]]]:
    """Four sandboxes with metadata of their own, in the order of their start; the last one is paused."""
    metadata = {"group": str(uuid.uuid4()), "odd key/ü": "a b&c=d%41+"}
    sandboxes = [client.create(metadata={**metadata, "number": str(number)}) for number in range(4)]
    sandboxes[-1].pause()
    yield metadata, sandboxes
    for sandbox in sandboxes:
        sandbox.kill()


def _ids(client: Client, *, limit: int | None = None, order: str | None = None, **query: Any) -> list[str]:
    """All pages of a list."""
    options = {name: value for name, value in {"limit": limit, "order": order}.items() if value is not None}
    pages = client.sandbox_class.list(query=SandboxQuery(**query), **options, **client.options)
    found: list[str] = []
    while pages.has_next:
        page = pages.next_items()
        assert limit is None or len(page) <= limit
        found += [item.sandbox_id for item in page]
    return found


def test_filters(client: Client, group: tuple[dict[str, str], list[Any]]) -> None:
    metadata, sandboxes = group
    ids = [sandbox.sandbox_id for sandbox in sandboxes]
    assert _ids(client, metadata=metadata) == ids[::-1]
    assert _ids(client, metadata={**metadata, "number": "2"}) == [ids[2]]
    assert _ids(client, metadata={"group": "no-such"}) == []
    assert _ids(client, metadata=metadata, order="asc") == ids
    assert _ids(client, metadata=metadata, state=[SandboxState.RUNNING]) == ids[2::-1]
    assert _ids(client, metadata=metadata, state=[SandboxState.PAUSED]) == [ids[3]]
    assert _ids(client, metadata=metadata, state=[SandboxState.PAUSED, SandboxState.RUNNING]) == ids[::-1]
    assert _ids(client, metadata=metadata, template="base") == ids[::-1]
    assert _ids(client, metadata=metadata, template="no-such-template") == []
    second = sandboxes[1].get_info().started_at
    assert _ids(client, metadata=metadata, started_after=second) == ids[:0:-1]
    assert _ids(client, metadata=metadata, started_after=second + timedelta(hours=1)) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages(client: Client, group: tuple[dict[str, str], list[Any]], limit: int, order: str) -> None:
    metadata, sandboxes = group
    ids = [sandbox.sandbox_id for sandbox in sandboxes]
    assert _ids(client, metadata=metadata, limit=limit, order=order) == (ids if order == "asc" else ids[::-1])


def test_what_is_listed(client: Client, group: tuple[dict[str, str], list[Any]]) -> None:
    metadata, sandboxes = group
    pages = client.sandbox_class.list(query=SandboxQuery(metadata=metadata), **client.options)
    listed = {item.sandbox_id: item for item in pages.next_items()}
    assert not pages.has_next
    for number, sandbox in enumerate(sandboxes):
        item, info = listed[sandbox.sandbox_id], sandbox.get_info()
        assert item.metadata == info.metadata == {**metadata, "number": str(number)}
        assert (item.name, item.state, item.started_at) == ("base", info.state, info.started_at)
        assert (item.cpu_count, item.memory_mb, item.envd_version) == (
            info.cpu_count,
            info.memory_mb,
            info.envd_version,
        )


def test_a_bad_token_is_refused(client: Client) -> None:
    with pytest.raises(SandboxException, match="400"):
        client.sandbox_class.list(next_token="garbage", **client.options).next_items()
    with pytest.raises(SandboxException, match="400"):
        client.sandbox_class.list(limit=-1, **client.options).next_items()
