"""The frame of the command line: help, versions, options, and the server's settings as options."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from aenv import __version__
from aenv.bench.rows import Report
from aenv.cli import main
from aenv.cli.app import COMMANDS, load
from aenv.settings import Settings
from tests.unit.cli.support import SOURCE, Cli
from tests.unit.guest.support import free_port


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    code: int
    out: str
    err: str


Aenv = Callable[..., Done]


@pytest.fixture
def aenv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Aenv:
    """Run a command line in this process, with the environment given and no credentials."""
    for name in [name for name in os.environ if name.startswith(("AENV_", "E2B_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))

    def run(*arguments: str) -> Done:
        monkeypatch.setattr("sys.argv", ["aenv", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


def test_help_names_every_command(aenv: Aenv) -> None:
    shown = aenv("--help").out
    for name, lazy in COMMANDS.items():
        assert (lazy.summary in shown) is not lazy.hidden, name


def test_help_stays_light() -> None:
    """What makes a program slow to start isn't imported for its help."""
    code = (
        "import sys; from aenv.cli.app import app; app(['--help'], standalone_mode=False);"
        "print(sorted({'aiohttp', 'pydantic', 'asyncio', 'numpy', 'aenv.settings'} & set(sys.modules)))"
    )
    env = {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", [name for name, lazy in COMMANDS.items() if lazy.name != "app"])
def test_every_command_explains_itself(aenv: Aenv, name: str) -> None:
    done = aenv(name, "--help")
    assert done.code == 0, done.err
    assert f"aenv {name}" in done.out
    assert load(name).name == name


def test_version(aenv: Aenv) -> None:
    assert aenv("--version").out == f"aenv {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["--nosuch"],
        ["info"],
        ["timeout", "i1", "0"],
        ["timeout", "i1", "soon"],
        ["fork", "i1", "-n", "0"],
        ["start", "base", "-d", "--env", "novalue"],
        ["start", "base", "-d", "--timeout", "-1"],
        ["start", "base"],
        ["connect", "i1"],
        ["exec", "i1"],
        ["ls", "--output", "xml"],
        ["ls", "--metadata", "=x"],
        ["cp", "a", "b"],
        ["cp", "i1:a", "i2:b"],
        ["cp", "", "i1:b"],
        ["server", "--nosuch"],
        ["server", "--port", "many"],
        ["server", "--runtime", "xen"],
        ["--api-url", "ftp://x", "--api-key", "k", "auth"],
    ],
)
def test_wrong_usage_is_exit_code_2(aenv: Aenv, arguments: list[str]) -> None:
    done = aenv(*arguments)
    assert done.code == 2, done
    assert done.err.strip()


def test_every_setting_is_an_option_of_the_server(aenv: Aenv) -> None:
    shown = aenv("server", "--help").out
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
        assert f"AENV_{name.upper()}" in shown


def test_a_wrong_setting_is_named(aenv: Aenv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_HOT_VMS", "-1")
    done = aenv("server")
    assert done.code == 2
    assert done.err.startswith("error: --hot-vms (AENV_HOT_VMS): ")


@pytest.mark.parametrize("command", [["ls"], ["start", "base", "-d"], ["exec", "i1", "true"]])
def test_no_server_says_where_and_what_to_do(aenv: Aenv, command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = aenv("--api-url", url, *command)
    first, second = done.err.splitlines()
    assert done.code == 1
    assert first.startswith(f"error: can't reach the server at {url}: ")
    assert "aenv server" in second


async def test_output_is_chosen_before_or_after_the_command(cli: Cli) -> None:
    plain = await cli("ls")
    before = await cli("--output", "table", "ls")
    after = await cli("--output", "json", "ls", "-o", "table")
    assert [item["sandboxID"] for item in json.loads(plain.out)] == ["i1", "i2"]
    assert before.out == after.out
    assert before.out.startswith(b"SANDBOX ID")


def test_a_benchmark_without_modes_refuses_one(aenv: Aenv) -> None:
    done = aenv("bench", "density", "--mode", "burst")
    assert done.code == 2
    assert "the area density has no modes" in done.err


def test_a_benchmark_prints_the_engine_that_it_compares_with(
    aenv: Aenv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.bench.run.run", lambda *_: Report(lambda _: None, "fake"))
    assert "def changed_pages" in json.loads(aenv("bench", "fork", "--json", "--engine").out)["engine"]
    assert "engine" not in json.loads(aenv("bench", "fork", "--json").out)
    assert "def changed_pages" in aenv("bench", "fork", "--output", "table", "--engine").out
