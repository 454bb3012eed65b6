"""What the contract has and this server doesn't is refused with words, not with a 404."""

from __future__ import annotations

import pytest

from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("method", "path", "word"),
    [
        ("GET", "/volumes", "volumes"),
        ("POST", "/volumes", "volumes"),
        ("GET", "/volumes/v", "volumes"),
        ("DELETE", "/volumes/v", "volumes"),
        ("GET", "/secrets?limit=1", "secrets"),
        ("POST", "/secrets", "secrets"),
        ("GET", "/secrets/s", "secrets"),
        ("POST", "/secrets/s", "secrets"),
        ("DELETE", "/secrets/a%2Fb", "secrets"),
        ("POST", "/templates", "building"),
        ("POST", "/v2/templates", "building"),
        ("POST", "/templates/base", "building"),
        ("POST", "/templates/base/builds/b", "building"),
    ],
)
async def test_refusals(server: Server, method: str, path: str, word: str) -> None:
    body: dict[str, str] | None = {} if method == "POST" else None
    assert is_error(await server.request(method, path, body), 400, word, "not supported yet")


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "path"),
        ("PATCH", "path"),
        ("DELETE", "path"),
        ("GET", "dir"),
        ("POST", "dir"),
        ("GET", "file"),
        ("PUT", "file"),
    ],
)
async def test_contents_of_volumes_have_their_codes_as_text(server: Server, method: str, route: str) -> None:
    answer = await server.request(method, f"/volumecontent/v/{route}?path=%2F")
    assert (answer.status, answer.body["code"]) == (400, "400")
    assert "volumes are not supported yet" in answer.body["message"]
