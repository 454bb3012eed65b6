"""Templates and snapshots: lookup, lists, deletion, and ids with percent-encoded characters."""

from __future__ import annotations

import uuid
from urllib.parse import quote

import pytest

from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def snapshot(server: Server, sandbox_id: str, name: str | None = None) -> str:
    """The id of a new snapshot."""
    answer = await server.request(
        "POST", f"/sandboxes/{sandbox_id}/snapshots", {} if name is None else {"name": name}
    )
    assert answer.status == 201, answer
    assert answer.body["names"] == ([] if name is None else [f"default/{name}"])
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
    path = "/templates/" + quote(snapshot_id, safe="")
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
    for name in ("named", "default%2Fnamed", "NAMED%3Adefault"):
        assert await listed(f"name={name}") == [ids[1]]
    for name in ("team%2Fnamed", "named%3Aother", "nam"):
        assert await listed(f"name={name}") == []
    page = await server.request("GET", f"/snapshots?sandboxID={first}&limit=2")
    assert [found["snapshotID"] for found in page.body] == ids[2:0:-1]
    token = page.headers["x-next-token"]
    assert await listed(f"sandboxID={first}&limit=2&nextToken={token}") == [ids[0]]


async def test_a_name_used_again_gets_a_new_build(server: Server) -> None:
    sandbox_id = await server.create()
    again = [await snapshot(server, sandbox_id, "again") for _ in range(2)]
    assert again == ["default/again:default"] * 2
    described = (await server.request("GET", "/templates/again")).body
    (build,) = described["builds"]
    assert (described["buildID"], described["buildCount"]) == (build["buildID"], 2)
    listed = (await server.request("GET", "/snapshots?name=again")).body
    assert [each["snapshotID"] for each in listed] == again[:1]


async def test_snapshots_with_tags(server: Server) -> None:
    sandbox_id = await server.create()
    path = f"/sandboxes/{sandbox_id}/snapshots"
    made = [
        (await server.request("POST", path, {"name": name})).body["snapshotID"]
        for name in ("default/tagged:v1", "Tagged:V2")
    ]
    assert made == ["default/tagged:v1", "default/tagged:v2"]
    assert is_error(
        await server.request("POST", "/v2/sandboxes", {"templateID": "tagged"}), 404, "tagged"
    )  # there is no default
    listed = (await server.request("GET", "/snapshots?name=tagged")).body
    assert [each["snapshotID"] for each in listed] == made[::-1]
    user = await server.create(templateID="default/tagged:v1")
    assert is_error(await server.request("DELETE", "/templates/tagged%3Av1"), 400, "in use")
    assert (await server.request("DELETE", "/templates/default%2Ftagged%3Av2")).status == 204
    assert is_error(await server.request("GET", "/templates/tagged%3Av2"), 404)
    await server.request("DELETE", f"/sandboxes/{user}")
    assert (await server.request("DELETE", "/templates/tagged%3Av1")).status == 204
    assert is_error(await server.request("GET", "/templates/tagged"), 404)


async def test_use_is_counted(server: Server) -> None:
    sandbox_id = await server.create()
    await snapshot(server, sandbox_id, "used")
    before = (await server.request("GET", "/templates/used")).body
    assert (before["spawnCount"], before["lastSpawnedAt"]) == (0, None)
    await server.create(templateID="used")
    after = (await server.request("GET", "/templates/used")).body
    assert after["spawnCount"] == 1
    assert after["lastSpawnedAt"] is not None


async def test_publicity(server: Server) -> None:
    sandbox_id = await server.create()
    await snapshot(server, sandbox_id, "shown")
    path = "/templates/aliases/default%2Fshown"
    assert (await server.request("GET", path)).body["public"] is False
    for generation, public in (("/v2", True), ("", False)):
        answer = await server.request("PATCH", f"{generation}/templates/shown", {"public": public})
        assert (answer.status, answer.body) == (200, {"names": ["default/shown"]})
        assert (await server.request("GET", path)).body["public"] is public
    assert is_error(await server.request("PATCH", "/v2/templates/shown", {}), 400, "public")
    assert is_error(await server.request("PATCH", "/v2/templates/nix", {"public": True}), 404, "nix")


async def test_team_and_default_templates(server: Server) -> None:
    (team,) = (await server.request("GET", "/teams")).body
    assert team["apiKey"] == server.key
    assert team["isDefault"] is True
    for name in (team["teamID"], team["name"]):
        assert len((await server.request("GET", f"/templates?teamID={name}")).body) == 1
        assert len((await server.request("GET", f"/v2/templates?teamID={name}")).body) == 1
    assert is_error(await server.request("GET", "/templates?teamID=other"), 400, "teamID")
    (template,) = (await server.request("GET", "/default-templates")).body
    assert template["names"] == ["base"]


async def test_builds_are_ready(server: Server) -> None:
    template = (await server.request("GET", "/templates/base?limit=1")).body
    build_id = template["buildID"]
    path = f"/templates/base/builds/{build_id}"
    status = await server.request("GET", f"{path}/status?logsOffset=0&limit=100&level=info")
    assert status.body == {
        "templateID": template["templateID"],
        "buildID": build_id,
        "status": "ready",
        "logs": [],
        "logEntries": [],
    }
    logs = await server.request("GET", f"{path}/logs?direction=backward&source=persistent&limit=5")
    assert (logs.status, logs.body) == (200, {"logs": []})
    other = f"/templates/base/builds/{uuid.uuid4()}"
    for route in ("status", "logs"):
        assert is_error(await server.request("GET", f"{other}/{route}"), 404, "build")
        assert is_error(await server.request("GET", f"{path}/{route}?level=loud"), 400, "level")


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 300, "ns/a", "a:b c", f"a:{uuid.UUID(int=7)}"])
async def test_bad_snapshot_names(server: Server, name: str) -> None:
    sandbox_id = await server.create()
    answer = await server.request("POST", f"/sandboxes/{sandbox_id}/snapshots", {"name": name})
    assert is_error(answer, 400)
    assert "name" in answer.body["message"] or "tag" in answer.body["message"]
