"""Building templates over HTTP: what is answered, what is refused, uploads, pages of logs."""

from __future__ import annotations

import asyncio
import io
import tarfile
import uuid
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from tests.unit.api.support import Answer, Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")

HASH = "0" * 64


async def request(server: Server, name: str = "built", **fields: Any) -> dict[str, Any]:
    """What a new build was answered with."""
    answer = await server.request("POST", "/v3/templates", {"name": name, **fields})
    assert answer.status == 202, answer
    body = answer.body
    assert isinstance(body, dict)
    return body


async def start(server: Server, build: dict[str, Any], **body: Any) -> Answer:
    path = f"/v2/templates/{build['templateID']}/builds/{build['buildID']}"
    return await server.request("POST", path, {"fromTemplate": "base"} | body)


async def status(server: Server, build: dict[str, Any], query: str = "") -> dict[str, Any]:
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}/status{query}"
    answer = await server.request("GET", path)
    assert answer.status == 200, answer
    body = answer.body
    assert isinstance(body, dict)
    return body


async def over(server: Server, build: dict[str, Any]) -> dict[str, Any]:
    """The last state."""
    async with asyncio.timeout(60):
        while True:
            found = await status(server, build)
            if found["status"] not in {"waiting", "building"}:
                return found
            await asyncio.sleep(0.05)


def run(*commands: str) -> list[dict[str, Any]]:
    return [{"type": "RUN", "args": [command], "force": False} for command in commands]


async def test_a_build_from_its_request_to_a_sandbox(server: Server) -> None:
    build = await request(server, "one:v1", tags=["v1", "Stable"], cpuCount=3, memoryMB=256, minFreeDiskMb=0)
    assert str(uuid.UUID(build["buildID"])) == build["buildID"]
    assert build["names"] == ["default/one"]
    assert build["aliases"] == ["one"]
    assert build["tags"] == ["v1", "stable"]
    assert build["public"] is False
    assert (await status(server, build))["status"] == "waiting"
    assert is_error(await server.request("GET", "/templates/aliases/one"), 404)
    begun = await start(server, build, steps=run("echo hi", "warn oh"), readyCmd="echo up", force=False)
    assert begun.status == 202, begun
    ended = await over(server, build)
    assert (ended["status"], "reason" in ended) == ("ready", False)
    assert ended["logs"] == [entry["message"] for entry in ended["logEntries"]]
    assert "[1/2] [stdout]: hi" in ended["logs"]
    assert {entry["level"] for entry in ended["logEntries"]} == {"info", "debug"}
    assert next(e for e in ended["logEntries"] if e["message"] == "[2/2] [stderr]: oh")["step"] == "2"
    one = (await server.request("GET", "/templates/one")).body
    assert (one["cpuCount"], one["memoryMB"], one["buildStatus"]) == (3, 256, "ready")
    assert (await server.request("GET", "/templates/aliases/one%3Astable")).status == 200
    sandbox = await server.create(templateID="one:stable")
    assert (await server.request("DELETE", f"/sandboxes/{sandbox}")).status == 204
    assert (await server.request("DELETE", "/templates/one")).status == 204
    assert is_error(await server.request("GET", f"/templates/one/builds/{build['buildID']}/status"), 404)


async def test_pages_of_a_log(server: Server) -> None:
    build = await request(server)
    await start(server, build, steps=run("echo a", "fail 1"))
    every = (await over(server, build))["logEntries"]
    paged: list[dict[str, Any]] = []
    while page := (await status(server, build, f"?logsOffset={len(paged)}&limit=2"))["logEntries"]:
        paged += page
    assert paged == every
    assert (await status(server, build, "?limit=0"))["logEntries"] == []
    (error,) = (await status(server, build, "?level=error"))["logEntries"]
    assert error["level"] == "error"
    assert (await status(server, build, "?level=error&logsOffset=1"))["logEntries"] == []
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}/logs"
    assert (await server.request("GET", path)).body["logs"] == every
    backward = (await server.request("GET", f"{path}?direction=backward&limit=1")).body["logs"]
    assert backward == [error]
    assert (await server.request("GET", f"{path}?cursor=99999999999999")).body["logs"] == []


async def test_why_a_build_failed(server: Server) -> None:
    build = await request(server, "failed")
    await start(server, build, steps=run("echo a", "echo words && fail 9"))
    ended = await over(server, build)
    assert ended["status"] == "error"
    assert ended["reason"]["step"] == "2"
    assert "exit code 9" in ended["reason"]["message"]
    assert ended["reason"]["logEntries"][-1]["level"] == "error"


async def test_uploads(server: Server) -> None:
    build = await request(server, "uploaded")
    path = f"/templates/{build['templateID']}/files/{HASH}"
    link = await server.request("GET", path)
    assert (link.status, link.body["present"]) == (201, False)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as out:
        info = tarfile.TarInfo("a.txt")
        info.size = 7
        out.addfile(info, io.BytesIO(b"content"))
    async with server.session.put(link.body["url"], data=archive.getvalue()) as answer:  # without a key
        assert answer.status == 204
    assert (await server.request("GET", path)).body["present"] is True
    copy = {"type": "COPY", "args": ["a.txt", "/opt/", "", ""], "filesHash": HASH, "forceUpload": True}
    await start(server, build, steps=[copy, *run("get /opt/a.txt")])
    ended = await over(server, build)
    assert ended["status"] == "ready", ended
    assert "[2/2] [stdout]: content" in ended["logs"]


async def test_links_that_are_not_ours(server: Server) -> None:
    build = await request(server, "links")
    link = (await server.request("GET", f"/templates/links/files/{HASH}")).body["url"]
    assert link.startswith(f"{server.url}/uploads?")
    query = dict(parse_qsl(urlsplit(link).query))
    for change in (
        {"hash": "1" * 64},
        {"expires": str(int(query["expires"]) + 1)},
        {"signature": "0" * 64},
        {"signature": "ä"},
    ):
        answer = await server.request("PUT", f"/uploads?{urlencode(query | change)}", headers={})
        assert is_error(answer, 401, "link"), change
    assert is_error(await server.request("PUT", f"/uploads?{urlencode(query | {'hash': 'x'})}"), 400, "64")
    assert is_error(await server.request("GET", f"/templates/{build['templateID']}/files/xyz"), 400, "64")
    assert is_error(await server.request("GET", f"/templates/none/files/{HASH}"), 404)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "name"),
        ({"name": "base"}, "the server itself"),
        ({"name": "A b"}, "letters"),
        ({"name": "x", "tags": ["a b"]}, "tag"),
        ({"name": "x", "cpuCount": 0}, "cpuCount"),
        ({"name": "x", "memoryMB": 64}, "memoryMB"),
        ({"name": "x", "minFreeDiskMb": -1}, "minFreeDiskMb"),
        ({"name": "x", "unknown": 1}, "unknown"),
    ],
)
async def test_requests_that_are_refused(server: Server, body: dict[str, Any], word: str) -> None:
    assert is_error(await server.request("POST", "/v3/templates", body), 400, word)


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ({"fromTemplate": None}, 400, "fromImage"),
        ({"fromImage": "debian"}, 400, "one of"),
        ({"fromImageRegistry": {"type": "registry", "username": "u", "password": "p"}}, 400, "one of"),
        ({"fromImageRegistry": {"type": "other"}}, 400, "fromImageRegistry"),
        ({"fromTemplate": "none"}, 404, "'none'"),
        ({"steps": [{"type": "SHELL", "args": ["x"]}]}, 400, "SHELL"),
        ({"steps": [{"type": "COPY", "args": ["a", "b"]}]}, 400, "filesHash"),
        ({"steps": run(*["echo"] * 501)}, 400, "500"),
        ({"startCmd": "a\0b"}, 400, "NUL"),
    ],
)
async def test_starts_that_are_refused(server: Server, body: dict[str, Any], code: int, word: str) -> None:
    build = await request(server, "refused")
    assert is_error(await start(server, build, **body), code, word)
    assert (await status(server, build))["status"] == "waiting"


async def test_the_image_of_the_sdks_is_our_base(server: Server) -> None:
    build = await request(server, "default-parent")
    assert (await start(server, build, fromTemplate=None, fromImage="e2bdev/base")).status == 202
    assert (await over(server, build))["status"] == "ready"


async def test_a_build_is_started_once(server: Server) -> None:
    build = await request(server, "once")
    assert (await start(server, build)).status == 202
    assert is_error(await start(server, build), 409, "started already")
    assert is_error(await start(server, build | {"buildID": "none"}), 404)
    assert is_error(await start(server, build | {"templateID": "base"}), 404)
    await over(server, build)


async def test_builds_that_were_not_built_have_a_state(server: Server) -> None:
    base = (await server.request("GET", "/templates/base")).body
    found = await status(server, base)
    assert (found["status"], found["logs"]) == ("ready", [])
    path = f"/templates/base/builds/{base['buildID']}/logs"
    assert (await server.request("GET", path)).body == {"logs": []}
