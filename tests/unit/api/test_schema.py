"""The OpenAPI description is complete, and what the server answers is what it says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from aenv.sandboxes.service import SandboxService
from aenv.unexpected import ERRORS
from tests.unit.api.fuzzing import fuzz, served
from tests.unit.api.support import Server, is_error


def unexpected_errors() -> float:
    """How many unexpected errors this process has seen."""
    (family,) = ERRORS.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


ROUNDS = 5
"""Searches, each with a seed of its own, in which every route must have been asked in a way that works."""


def search(tmp_path: Path, *, seed: int, **options: Any) -> None:
    """Fuzz a server, and fail with all that was found."""
    before = unexpected_errors()
    answers: dict[str, set[int]] = {}
    with served(tmp_path) as target:
        for attempt in range(ROUNDS):
            failures, answered = fuzz(target, seed=seed + attempt, **options)
            assert not failures, "\n\n".join(failures)
            answers = {label: answers.get(label, set()) | codes for label, codes in answered.items()}
            changes = [label for label in answers if "{sandbox_id}" in label]
            assert len(changes) >= 13
            wanted = ["POST /v2/sandboxes", "DELETE /templates/{name}", *changes]
            idle = [label for label in wanted if not {200, 201, 204} & answers[label]]
            if not idle:
                break
        else:
            pytest.fail(f"these have never worked: {idle}")
    assert unexpected_errors() == before


@pytest.mark.timeout(300)
def test_answers_are_as_described(tmp_path: Path) -> None:
    search(tmp_path, examples=3, seed=3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_answers_are_as_described_for_long(tmp_path: Path) -> None:
    seed = random.randrange(2**32)  # noqa: S311 -- printed, so that a failure can be had again
    print(f"seed {seed}")  # noqa: T201
    search(tmp_path, examples=50, seed=seed, seconds=600)


def test_the_search_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the test above against looking for nothing."""

    async def broken(*_: Any) -> None:
        raise LookupError("nobody foresaw this")

    monkeypatch.setattr(SandboxService, "list", broken)
    before = unexpected_errors()
    with served(tmp_path) as target:
        failures, _ = fuzz(target, examples=1, seed=1, only="/v2/sandboxes")
    assert any("not_a_server_error" in failure for failure in failures)
    assert unexpected_errors() > before


@pytest.mark.asyncio(loop_scope="module")
class TestDescription:
    """What `/openapi.json` says."""

    async def test_it_is_open_and_complete(self, server: Server) -> None:
        async with server.session.get(server.url + "/openapi.json") as response:
            assert response.status == 200
            described = await response.json()
        assert described["openapi"].startswith("3.1")
        assert {"/health", "/metrics", "/v2/sandboxes", "/teams"} <= described["paths"].keys()
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                where = f"{method} {path}"
                named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
                assert named == {part.strip("{}") for part in path.split("/") if part[:1] == "{"}, where
                assert "500" in operation["responses"], where
                assert "HTTPValidationError" not in str(operation), where
                keyed = path not in {"/health", "/metrics", "/uploads"}
                assert ("security" in operation) == keyed, where
                assert ("401" in operation["responses"]) == (keyed or path == "/uploads"), where

    async def test_bounds_are_those_of_the_server(self, server: Server) -> None:
        described = (await server.request("GET", "/openapi.json")).body
        body = described["components"]["schemas"]["ForkSandbox"]["properties"]
        assert (body["count"]["minimum"], body["count"]["maximum"]) == (1, server.settings.max_fork)
        assert body["timeout"]["anyOf"][0]["maximum"] == server.settings.max_timeout
        fork = described["paths"]["/sandboxes/{sandbox_id}/fork"]["post"]
        assert fork["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("ForkSandbox")
        known = {"201", "400", "401", "404", "409", "413", "429", "500", "503", "507"}
        assert known == fork["responses"].keys()

    async def test_405_names_what_the_path_takes(self, server: Server) -> None:
        answer = await server.request("PUT", "/v2/sandboxes")
        assert is_error(answer, 405)
        assert answer.headers["Allow"] == "GET, POST"
