"""Commands on sandboxes, snapshots and templates: what they ask for and what they print."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys

import pytest

from tests.unit.cli.support import KEY, Cli, ControlPlane


@pytest.mark.parametrize(
    ("arguments", "printed", "asked"),
    [
        (["pause", "i1"], "Paused i1", ("POST /sandboxes/i1/pause", {})),
        (["pause", "i1", "--disk-only"], "Paused i1", ("POST /sandboxes/i1/pause", {"memory": False})),
        (
            ["resume", "i2", "--reboot"],
            "Resumed i2",
            ("POST /v2/sandboxes/i2/connect", {"timeout": 300, "memory": False}),
        ),
        (
            ["resume", "i2", "--timeout", "6"],
            "Resumed i2",
            ("POST /v2/sandboxes/i2/connect", {"timeout": 6}),
        ),
        (
            ["timeout", "i1", "9"],
            "Timeout for i1 set to 9s",
            ("POST /sandboxes/i1/timeout", {"timeout": 9}),
        ),
        (["rm", "i1"], "Deleted sandbox i1", ("DELETE /sandboxes/i1", None)),
        (["delete", "i1"], "Deleted sandbox i1", ("DELETE /sandboxes/i1", None)),
        (["fork", "i1", "-n", "2"], "i1c0\ni1c1", ("POST /sandboxes/i1/fork", {"count": 2})),
        (
            ["snapshot", "create", "i1", "--name", "ready"],
            "s1:default",
            ("POST /sandboxes/i1/snapshots", {"name": "ready"}),
        ),
        (
            ["rollback", "i1", "ready:v1"],
            "Put i1 back to ready:v1",
            ("POST /sandboxes/i1/rollback", {"snapshotID": "ready:v1"}),
        ),
        (["snapshot", "rm", "a/b:c"], "Deleted snapshot a/b:c", ("DELETE /templates/a%2Fb%3Ac", None)),
        (["snapshot", "ls", "--sandbox-id", "i1"], "[]", ("GET /snapshots?sandboxID=i1", None)),
        (["template", "ls"], "[]", ("GET /v2/templates", None)),
        (
            ["start", "base", "-d", "-e", "A=b=c", "-m", "k=v", "--timeout", "9", "--no-auto-pause"],
            "i9",
            (
                "POST /v2/sandboxes",
                {
                    "templateID": "base",
                    "timeout": 9,
                    "envVars": {"A": "b=c"},
                    "metadata": {"k": "v"},
                    "autoPause": False,
                },
            ),
        ),
    ],
)
async def test_commands(
    cli: Cli, control: ControlPlane, arguments: list[str], printed: str, asked: tuple[str, object]
) -> None:
    done = await cli(*arguments)
    assert (done.code, done.err, done.out.decode().strip()) == (0, "", printed)
    assert control.seen == [asked]
    assert control.headers[0]["X-API-KEY"] == KEY


async def test_filters_are_sent_as_the_sdks_send_them(cli: Cli, control: ControlPlane) -> None:
    await cli("ls", "--state", "paused", "--metadata", "a b=c&d")
    assert control.seen[0][0] == "GET /v2/sandboxes?state=paused&metadata=a%252520b%3Dc%252526d"


async def test_a_table_shows_what_matters(cli: Cli) -> None:
    lines = (await cli("ls", "-o", "table")).out.decode().splitlines()
    assert lines[0].split()[:4] == ["SANDBOX", "ID", "TEMPLATE", "STATE"]
    assert lines[1].split()[:6] == ["i1", "base", "running", "2", "512", "10240"]
    assert lines[2].split()[:3] == ["i2", "base", "paused"]


async def test_info(cli: Cli) -> None:
    table = (await cli("info", "i1", "-o", "table")).out.decode()
    assert "token" not in table
    assert "team=search" in table
    assert "PAUSED" not in table
    assert json.loads((await cli("info", "i1")).out)["state"] == "running"
    assert "PAUSED      the host's disk was full" in (await cli("info", "i2", "-o", "table")).out.decode()


async def test_an_unknown_sandbox(cli: Cli) -> None:
    done = await cli("info", "i7")
    assert done.code == 1
    assert done.err == "error: sandbox 'i7' was not found\n`aenv ls` shows the sandboxes there are.\n"


async def test_odd_ids_are_data(cli: Cli, control: ControlPlane) -> None:
    done = await cli("info", "../../x?y#z")
    assert done.code == 1
    assert control.seen[0][0] == "GET /sandboxes/..%2F..%2Fx%3Fy%23z"


async def test_an_unknown_template(cli: Cli) -> None:
    done = await cli("start", "nosuch", "-d")
    assert done.code == 1
    assert done.err.startswith("error: template 'nosuch' was not found\n`aenv template ls`")


async def test_a_wrong_key(control: ControlPlane, cli: Cli) -> None:
    done = await Cli(control.url, cli.home, key="e2b_wrong")("ls")
    assert done.code == 1
    assert "aenv auth" in done.err


async def test_one_failure_of_several_doesnt_stop_the_others(cli: Cli, control: ControlPlane) -> None:
    done = await cli("rm", "i1", "i7", "i2")
    assert done.code == 1
    assert done.out == b"Deleted sandbox i1\nDeleted sandbox i2\n"
    assert "error: sandbox 'i7' was not found" in done.err
    assert control.states == {}


async def test_pausing_twice_is_no_failure(cli: Cli) -> None:
    assert (await cli("pause", "i2")).out == b"i2 was paused already\n"


async def test_a_fork_that_half_failed(cli: Cli) -> None:
    done = await cli("fork", "i1", "-n", "3")
    assert (done.code, done.out) == (1, b"i1c0\ni1c1\n")
    assert done.err == "error: 1 of 3 copies failed: no room\n"


async def test_auth_stores_what_the_server_accepts(cli: Cli, control: ControlPlane) -> None:
    stored = cli.home / ".config" / "aenv" / "credentials"
    refused = await cli("--api-url", control.url, "--api-key", "wrong", "auth")
    assert refused.code == 1
    assert not stored.exists()
    done = await cli("--api-url", control.url + "/", "--api-key", KEY, "auth")
    assert done.code == 0, done.err
    assert stored.stat().st_mode & 0o777 == 0o600

    plain = Cli("", cli.home, key="")
    assert (await plain("pause", "i1")).out == b"Paused i1\n"


async def test_auth_asks(cli: Cli, control: ControlPlane) -> None:
    done = await cli("auth", given=f"{control.url}\n{KEY}\n".encode())
    assert done.code == 0, done.err
    assert KEY.encode() not in done.out
    assert KEY in (cli.home / ".config" / "aenv" / "credentials").read_text()


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">/dev/full", 1, "error: [Errno 28] No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
    ],
)
async def test_streams_that_take_nothing(cli: Cli, redirection: str, code: int, error: str) -> None:
    process = await asyncio.create_subprocess_shell(
        f"exec {shlex.quote(sys.executable)} -m aenv.cli ls {redirection}", env=cli.environ, stderr=-1
    )
    _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (code, error)
