"""`Idempotency-Key`: a create that is sent again makes one sandbox and gets one answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import RuntimeFailure
from aenv.node import Node
from aenv.sandboxes import idempotency
from tests.unit.api.support import Answer, Server, fake_settings, is_error, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = {"templateID": "base", "metadata": {"a": "1", "b": "2"}}


async def create(server: Server, key: str, body: Any = None, path: str = "/v2/sandboxes") -> Answer:
    """Create with a key."""
    return await server.request("POST", path, body or BODY, headers={"Idempotency-Key": key})


async def alive(server: Server) -> int:
    """How many sandboxes there are."""
    return len((await server.request("GET", "/v2/sandboxes")).body)


@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
async def test_the_same_request_gets_the_same_answer(server: Server, path: str) -> None:
    key = "same" + path.replace("/", "-")
    first = await create(server, key, path=path)
    count = await alive(server)
    turned = {"metadata": {"b": "2", "a": "1"}, "templateID": "base", "mcp": None}
    for body in (BODY, turned):
        again = await create(server, key, body, path)
        assert (again.status, again.body) == (first.status, first.body) == (201, first.body)
    assert await alive(server) == count
    await server.request("DELETE", f"/sandboxes/{first.body['sandboxID']}")
    assert (await create(server, key, path=path)).body == first.body


async def test_requests_at_the_same_time_make_one_sandbox(server: Server) -> None:
    count = await alive(server)
    answers = await asyncio.gather(*(create(server, "at-once") for _ in range(8)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["sandboxID"] for answer in answers}) == 1
    assert await alive(server) == count + 1


async def test_another_request_under_the_key_is_refused(server: Server) -> None:
    assert (await create(server, "taken")).status == 201
    for body in ({"templateID": "base"}, BODY | {"timeout": 7}, BODY | {"metadata": {"a": "1"}}):
        assert is_error(await create(server, "taken", body), 422, "Idempotency-Key", "another request")


@pytest.mark.parametrize("key", ["", "A", "a b", "a_b", "ä", "x" * 256, "a,b"])
async def test_malformed_keys(server: Server, key: str) -> None:
    assert is_error(await create(server, key), 400, "Idempotency-Key")


async def test_the_longest_key(server: Server) -> None:
    assert (await create(server, "x" * 255)).status == 201


async def test_a_refused_create_does_not_burn_the_key(server: Server) -> None:
    assert (await create(server, "refused", {"templateID": "nix"})).status == 404
    assert (await create(server, "refused")).status == 201


async def test_the_answer_outlives_the_server_and_a_failure_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fake_settings(tmp_path, hot_vms=0, bare_vms=0)
    node = Node(settings)
    async with running(settings, node) as server:

        async def fail(*_: Any, **__: Any) -> None:
            raise RuntimeFailure("the VM didn't start")

        with monkeypatch.context() as patch:
            patch.setattr(node.starter, "start", fail)
            assert is_error(await create(server, "key"), 500, "didn't start")
        first = await create(server, "key")
        assert first.status == 201
    async with running(settings) as server:
        again = await create(server, "key")
        assert (again.status, again.body) == (201, first.body)
        assert await alive(server) == 1
        monkeypatch.setattr(idempotency, "KEPT_SECONDS", 0.0)
        later = await create(server, "key")
        assert later.status == 201
        assert later.body["sandboxID"] != first.body["sandboxID"]
