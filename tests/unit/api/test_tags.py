"""Tags: which build a name stands for."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.api.support import Answer, Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def named(server: Server, name: str, times: int = 1) -> list[str]:
    """Take snapshots under a name; returns the ids of the builds."""
    sandbox_id = await server.create()
    builds = []
    for _ in range(times):
        answer = await server.request("POST", f"/sandboxes/{sandbox_id}/snapshots", {"name": name})
        assert answer.status == 201
        described = await server.request("GET", f"/templates/{quote(name, safe='')}")
        builds.append(described.body["buildID"])
    return builds


async def assign(server: Server, target: str, *tags: str) -> Answer:
    """Point tags to what `target` names."""
    return await server.request("POST", "/templates/tags", {"target": target, "tags": tags})


async def remove(server: Server, name: str, *tags: str) -> Answer:
    """Remove tags."""
    return await server.request("DELETE", "/templates/tags", {"name": name, "tags": tags})


async def test_a_tag_keeps_a_build_when_the_name_moves_on(server: Server) -> None:
    (first,) = await named(server, "moving")
    answer = await assign(server, "default/moving", "V1", "stable", "v1")
    assert (answer.status, answer.body) == (201, {"tags": ["v1", "stable"], "buildID": first})
    (second,) = await named(server, "moving")
    described = (await server.request("GET", "/templates/moving")).body
    assert {build["buildID"] for build in described["builds"]} == {first, second}
    assert described["buildID"] == second
    assert (await server.request("GET", "/templates/moving%3Av1")).body["buildID"] == first
    for name in ("moving:v1", "default/Moving:V1", "moving", f"{described['templateID']}:stable"):
        await server.create(templateID=name)

    tags = (await server.request("GET", "/templates/moving/tags")).body
    assert {tag["tag"]: tag["buildID"] for tag in tags} == {"default": second, "v1": first, "stable": first}
    assert all(tag["createdAt"].endswith("Z") for tag in tags)
    assert (await server.request("GET", "/templates/moving/tags/count")).body == {"total": 3}

    # Back to the old build.
    assert (await assign(server, "moving:v1", "default")).body["buildID"] == first
    assert (await server.request("GET", "/templates/moving")).body["buildID"] == first


async def test_removal(server: Server) -> None:
    await named(server, "removal")
    await assign(server, "removal", "a", "b")
    assert (await remove(server, "removal", "a", "nix")).status == 204
    tags = (await server.request("GET", "/templates/removal/tags")).body
    assert {tag["tag"] for tag in tags} == {"default", "b"}
    assert is_error(await remove(server, "removal", "b", "default"), 400, "default", "can't be removed")
    create = {"templateID": "removal:a"}
    assert is_error(await server.request("POST", "/v2/sandboxes", create), 404, "removal:a")


async def test_a_build_goes_with_its_last_tag(server: Server) -> None:
    (old, _) = await named(server, "last", times=2)
    listed = (await server.request("GET", "/templates/last")).body["builds"]
    assert old not in {build["buildID"] for build in listed}
    assert is_error(await server.request("GET", f"/templates/last/builds/{old}/status"), 404)
    history = (await server.request("GET", "/templates/last/tags/default/assignments")).body["data"]
    assert [each["buildId"] for each in history][1] == old


async def test_existence(server: Server) -> None:
    await named(server, "existence")
    for tag, exists in (("default", True), ("DEFAULT", True), ("nix", False)):
        answer = await server.request("GET", f"/templates/existence/tags/exists?tag={tag}")
        assert answer.body == {"exists": exists, "normalizedTag": tag.lower()}
    assert is_error(await server.request("GET", "/templates/existence/tags/exists?tag=a%20b"), 400, "tag")
    assert is_error(await server.request("GET", "/templates/existence/tags/exists"), 400, "tag")


async def test_history_in_pages(server: Server) -> None:
    builds = await named(server, "history", times=5)
    path = "/templates/history/tags/default/assignments?limit=2"
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await server.request("GET", path + cursor)).body
        found += page["data"]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={quote(page['nextCursor'])}"
    assert [each["buildId"] for each in found] == builds[::-1]
    assert len({str(uuid.UUID(each["assignmentId"])) for each in found}) == 5
    assert set(found[0]) == {"assignmentId", "buildId", "assignedAt", "buildCreatedAt", "buildFinishedAt"}
    assert is_error(await server.request("GET", path + "&cursor=x"), 400)
    assert is_error(await server.request("GET", "/templates/history/tags/nix/assignments"), 404, "nix")


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("name_asc", ["a1", "a2", "default", "z"]),
        ("name_desc", ["z", "default", "a2", "a1"]),
        ("latest_desc", ["a2", "a1", "z", "default"]),
        ("latest_asc", ["default", "z", "a1", "a2"]),
    ],
)
async def test_groups(server: Server, sort: str, expected: list[str]) -> None:
    name = f"groups-{sort}"
    await named(server, name, times=3)
    for tag in ("z", "a1", "a2"):
        await assign(server, name, tag)
    path = f"/templates/{name}/tags/groups?sort={sort}&tagsLimit=3&assignmentLimit=2"
    first = (await server.request("GET", path)).body
    second = (await server.request("GET", f"{path}&tagsCursor={quote(first['nextCursor'])}")).body
    groups = first["tags"] + second["tags"]
    assert [group["tag"] for group in groups] == expected
    assert second["nextCursor"] is None
    by_tag = {group["tag"]: group for group in groups}
    assert (len(by_tag["default"]["assignments"]), by_tag["default"]["hasMore"]) == (2, True)
    assert (len(by_tag["z"]["assignments"]), by_tag["z"]["hasMore"]) == (1, False)
    searched = (await server.request("GET", f"{path}&search=A")).body
    assert sorted(group["tag"] for group in searched["tags"]) == ["a1", "a2", "default"]
    other = "name_asc" if sort != "name_asc" else "name_desc"
    wrong = f"/templates/{name}/tags/groups?sort={other}&tagsCursor={quote(first['nextCursor'])}"
    assert is_error(await server.request("GET", wrong), 400, "tagsCursor")


@pytest.mark.parametrize("query", ["sort=up", "tagsLimit=0", "assignmentLimit=101", "tagsCursor=x"])
async def test_wrong_queries_are_named(server: Server, query: str) -> None:
    answer = await server.request("GET", f"/templates/base/tags/groups?{query}")
    assert is_error(answer, 400, query.partition("=")[0])


@pytest.mark.parametrize("tag", ["", "a b", "ä", "a/b", "x" * 129, str(uuid.UUID(int=7))])
async def test_bad_tags(server: Server, tag: str) -> None:
    assert is_error(await assign(server, "base", tag), 400, "tag")
    assert is_error(await remove(server, "base", tag), 400, "tag")


async def test_unknown_names_and_bad_bodies(server: Server) -> None:
    for target in ("nix", "base:nix", "other/base"):
        assert is_error(await assign(server, target, "a"), 404, target)
    assert is_error(await remove(server, "nix", "a"), 404, "nix")
    assert is_error(await assign(server, "base"), 400, "tags")
    for route in ("", "/count", "/exists?tag=a", "/groups", "/default/assignments"):
        assert is_error(await server.request("GET", f"/templates/nix/tags{route}"), 404, "nix")
    for method in ("POST", "DELETE"):
        assert is_error(await server.request(method, "/templates/tags", {}), 400)
