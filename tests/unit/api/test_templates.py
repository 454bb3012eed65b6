"""Templates and snapshots: lookup, lists, deletion, and ids with percent-encoded characters."""

from __future__ import annotations

import uuid

import pytest

from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def snapshot(server: Server, sandbox_id: str, name: str | None = None) -> str:
    """The id of a new snapshot."""
    answer = await server.request(
        "POST", f"/sandboxes/{sandbox_id}/snapshots", {} if name is None else {"name": name}
    )
    assert answer.status == 201, answer
    assert answer.body["names"] == ([] if name is None else [name])
    found = answer.body["snapshotID"]
    assert isinstance(found, str)
    return found


async def test_templates_by_id_and_alias(server: Server) -> None:
    listed = await server.request("GET", "/templates")
    assert listed.status == 200
    (template,) = listed.body
    assert template["aliases"] == template["names"] == ["base"]
    assert template["createdBy"] is None
    assert template["lastSpawnedAt"] is None
    assert template["buildStatus"] == "ready"
    assert (await server.request("GET", "/v2/templates?limit=1")).body == listed.body
    template_id = template["templateID"]
    for name in ("base", "base%3Adefault", template_id, f"{template_id}:default"):
        one = await server.request("GET", f"/templates/{name}")
        assert one.status == 200
        assert one.body["templateID"] == template_id
        (build,) = one.body["builds"]
        assert str(uuid.UUID(build["buildID"])) == build["buildID"]
        alias = await server.request("GET", f"/templates/aliases/{name}")
        assert (alias.status, alias.body) == (200, {"templateID": template_id, "public": True})


@pytest.mark.parametrize("name", ["nix", "ns%2Fnix", "ns%2Fnix%3Adefault", "base%3Anix", "%C3%A4", "%2F"])
async def test_unknown_names(server: Server, name: str) -> None:
    for method, path in (
        ("GET", f"/templates/aliases/{name}"),
        ("GET", f"/templates/{name}"),
        ("DELETE", f"/templates/{name}"),
        ("GET", f"/snapshots/{name}"),
    ):
        assert is_error(await server.request(method, path), 404, "was not found")


async def test_snapshot_life(server: Server) -> None:
    sandbox_id = await server.create()
    snapshot_id = await snapshot(server, sandbox_id, "mine")
    one = await server.request("GET", "/snapshots/mine")
    assert one.status == 200
    assert one.body["snapshotID"] == snapshot_id
    assert one.body["memoryMB"] == 512
    assert snapshot_id not in str((await server.request("GET", "/templates")).body)
    assert (await server.request("DELETE", f"/sandboxes/{sandbox_id}")).status == 204
    child = await server.create(templateID=snapshot_id)
    assert (await server.request("DELETE", f"/sandboxes/{child}")).status == 204
    path = "/templates/" + snapshot_id.replace(":", "%3A")
    assert (await server.request("DELETE", path)).status == 204
    assert is_error(await server.request("DELETE", path), 404)
    assert is_error(await server.request("GET", "/snapshots/mine"), 404, "snapshot")
    assert is_error(await server.request("GET", "/snapshots/base"), 404, "snapshot")


async def test_snapshot_list(server: Server) -> None:
    first, second = await server.create(), await server.create()
    ids = [
        await snapshot(server, first),
        await snapshot(server, first, "named"),
        await snapshot(server, first),
    ]
    ids.append(await snapshot(server, second))

    async def listed(query: str) -> list[str]:
        answer = await server.request("GET", f"/snapshots?{query}")
        assert answer.status == 200
        return [found["snapshotID"] for found in answer.body]

    assert await listed(f"sandboxID={first}") == ids[2::-1]
    assert await listed(f"sandboxID={second}") == ids[3:]
    assert await listed("name=named") == await listed("name=team%2Fnamed%3Adefault") == [ids[1]]
    page = await server.request("GET", f"/snapshots?sandboxID={first}&limit=2")
    assert [found["snapshotID"] for found in page.body] == ids[2:0:-1]
    token = page.headers["x-next-token"]
    assert await listed(f"sandboxID={first}&limit=2&nextToken={token}") == [ids[0]]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 300])
async def test_bad_snapshot_names(server: Server, name: str) -> None:
    sandbox_id = await server.create()
    answer = await server.request("POST", f"/sandboxes/{sandbox_id}/snapshots", {"name": name})
    assert is_error(answer, 400, "name")
