"""`docs/e2b-compatibility.md` says something about everything, and what it says of routes is true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from e2b import AsyncSandbox, Sandbox, Template
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.command_handle import AsyncCommandHandle
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.filesystem.watch_handle import AsyncWatchHandle
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.command_handle import CommandHandle
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b.sandbox_sync.filesystem.watch_handle import WatchHandle
from e2b.sandbox_sync.git import Git

from tests.server import ROOT, STATE
from tests.unit.api.support import fake_settings, running

DOCUMENT = ROOT / "docs" / "e2b-compatibility.md"
ENDPOINTS = Path(__file__).parent / "e2b_endpoints.txt"

VERDICTS = {"works", "differs", "refused"}
ABSENT = "no"
"""A version of the SDK doesn't have the method."""

GROUPS: dict[str, tuple[type, ...]] = {
    "sandbox": (Sandbox, AsyncSandbox),
    "sandbox.commands": (Commands, AsyncCommands),
    "sandbox.pty": (Pty, AsyncPty),
    "sandbox.files": (Filesystem, AsyncFilesystem),
    "sandbox.git": (Git, AsyncGit),
    "command": (CommandHandle, AsyncCommandHandle),
    "watch": (WatchHandle, AsyncWatchHandle),
}
IN_THE_GUEST = {f"GET /{name}" for name in ("health", "files", "metrics", "envs")} | {
    "POST /files",
    "POST /files/compose",
}
CLASSES_AS_A_WHOLE = {"Volume.*", "Secret.*"}


def _rows() -> dict[str, list[str]]:
    """The tables' rows by their first cell, which is code: the other cells."""
    rows: dict[str, list[str]] = {}
    for line in DOCUMENT.read_text().splitlines():
        if found := re.fullmatch(r"\| `([^`]+)` \|(.*)\|", line):
            assert found[1] not in rows, f"{found[1]} is there twice"
            rows[found[1]] = [cell.strip() for cell in found[2].split("|")]
    return rows


def _endpoints() -> list[str]:
    return [line for line in ENDPOINTS.read_text().splitlines() if not line.startswith("#")]


def _shape(endpoint: str) -> str:
    """An endpoint without the names of its parameters."""
    return re.sub(r"\{\w+\}", "{}", endpoint)


def _methods() -> set[str]:
    return {
        f"{group}.{name}"
        for group, classes in GROUPS.items()
        for kind in classes
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }


@pytest.mark.parametrize("endpoint", _endpoints())
def test_every_endpoint_has_a_verdict(endpoint: str) -> None:
    verdict, note = _rows()[endpoint]
    assert verdict in VERDICTS
    assert note or verdict == "works", "say how it differs, or why it is refused"


@pytest.mark.parametrize("method", sorted(_methods()))
def test_every_method_has_a_verdict(method: str) -> None:
    *verdicts, note = _rows()[method]
    assert len(verdicts) == 3
    assert set(verdicts) <= VERDICTS | {ABSENT}
    assert verdicts[1] != ABSENT, "the SDK 2.63.0 has it"
    assert note or set(verdicts) <= {"works", ABSENT}, "say how it differs, or why it is refused"


def test_nothing_is_listed_that_does_not_exist() -> None:
    rows = _rows().keys()
    endpoints = {name for name in rows if re.match(r"[A-Z]+ /", name)}
    assert endpoints - IN_THE_GUEST == set(_endpoints())
    templates = {name for name in rows if name.startswith("Template.")}
    for name in templates:
        assert callable(getattr(Template, name.partition(".")[2]))
    assert rows - endpoints - templates - CLASSES_AS_A_WHOLE == _methods()


async def test_every_endpoint_has_a_route(tmp_path: Path) -> None:
    """Refused ones too: a program shall read that something isn't supported, not that it isn't found."""
    async with running(fake_settings(tmp_path)) as server:
        document = (await server.request("GET", "/openapi.json")).body
    served = {
        _shape(f"{method.upper()} {path}")
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert {endpoint for endpoint in _endpoints() if _shape(endpoint) not in served} == set()


async def test_refused_endpoints_say_that_they_are(tmp_path: Path) -> None:
    async with running(fake_settings(tmp_path)) as server:
        for endpoint in _endpoints():
            if _rows()[endpoint][0] != "refused":
                continue
            method, _, path = endpoint.partition(" ")
            answer = await server.request(method, re.sub(r"\{\w+\}", "x", path))
            assert answer.status == 400, endpoint
            assert "not supported yet" in answer.body["message"]


IN_JAVASCRIPT = {"sandbox.pty.send_stdin": "sandbox.pty.send_input"}
"""Methods that have another name there."""


def _listed(command: Sequence[str | Path]) -> set[str]:
    """The methods that a program prints, named as in Python."""
    printed = json.loads(subprocess.check_output(command, timeout=60))
    return {
        f"{group}.{re.sub('([A-Z])', lambda found: '_' + found[1].lower(), name)}"
        for group, names in printed.items()
        for name in names
    }


def _programs() -> list[tuple[int, Sequence[str | Path]]]:
    """The column of each other SDK, and the command that prints its methods."""
    here, sdks = Path(__file__).parent, STATE / "sdks"
    script = sdks / "js" / "e2b_methods.mjs"  # node finds packages from where a script is
    shutil.copy(here / "e2b_methods.mjs", script)
    return [
        (0, [sdks / "python-2.45.1" / "bin" / "python", here / "e2b_methods.py"]),
        (2, [Path(sys.executable).parent / "node", script]),
    ]


def test_what_the_other_sdks_lack_is_said() -> None:
    for column, command in _programs():
        there = _listed(command)
        groups = {name.rpartition(".")[0] for name in there}
        for method, (*verdicts, _) in _rows().items():
            if method.rpartition(".")[0] in groups and method not in CLASSES_AS_A_WHOLE:
                named = IN_JAVASCRIPT.get(method, method) if column == 2 else method
                assert (verdicts[column] == ABSENT) == (named not in there), (method, command)
