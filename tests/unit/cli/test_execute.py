"""`aenv exec`, with the real envd behind it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from aenv.cli.execute import shell_line
from aenv.guest.client import EnvdClient
from tests.unit.cli.support import TOKEN, Cli, ControlPlane
from tests.unit.guest.support import NO_PROFILE

HOME = f"HOME={NO_PROFILE['HOME']}"


async def run(cli: Cli, *arguments: str, given: bytes | None = None) -> tuple[int, bytes, str]:
    done = await cli("exec", "-u", "root", "-e", HOME, *arguments, given=given)
    return done.code, done.out, done.err


async def test_both_outputs_and_the_exit_code(cli: Cli) -> None:
    assert await run(cli, "i1", "echo out; echo err >&2; exit 3") == (3, b"out\n", "err\n")


async def test_arguments_arrive_as_they_are(cli: Cli) -> None:
    assert await run(cli, "i1", "printf", "%s|", "a b", "$HOME", "--help", "") == (
        0,
        b"a b|$HOME|--help||",
        "",
    )


async def test_environment_and_folder(cli: Cli) -> None:
    code, out, _ = await run(cli, "-w", "/usr", "-e", "A=1", "-e", "B=2", "i1", "pwd; echo $A$B")
    assert (code, out) == (0, b"/usr\n12\n")


async def test_standard_input_is_passed_on(cli: Cli, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    assert await run(cli, "i1", "cat", given=data) == (0, data, "")
    assert await run(cli, "i1", "wc", "-c", given=b"") == (0, b"0\n", "")
    (tmp_path / "given").write_bytes(b"from a file")
    with (tmp_path / "given").open("rb") as file:
        process = await cli.start("exec", "-u", "root", "i1", "cat", stdin=file)
        assert await process.communicate() == (b"from a file", b"")


async def test_a_command_that_ends_before_its_input(cli: Cli) -> None:
    process = await cli.start("exec", "-u", "root", "i1", "true", stdin=asyncio.subprocess.PIPE)
    async with asyncio.timeout(20):
        assert await process.wait() == 0
    await process.communicate()


async def test_output_streams(cli: Cli) -> None:
    process = await cli.start(
        "exec", "-u", "root", "i1", "sh", "-c", "echo one; read x; echo $x", stdin=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"one\n"
        process.stdin.write(b"two\n")
        assert await process.stdout.readline() == b"two\n"
        await process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143)])
async def test_death_by_signal_as_a_shell_shows_it(cli: Cli, number: int, code: int) -> None:
    assert (await run(cli, "i1", "sh", "-c", f"kill -{number} $$"))[0] == code


async def test_a_timeout_kills(cli: Cli) -> None:
    code, _, err = await run(cli, "--timeout", "0.2", "i1", "sleep", "60")
    assert code == 124
    assert err.startswith("error: the command didn't end within its --timeout")


@pytest.mark.parametrize(
    ("script", "presses"),
    [("echo ready; sleep 60", 1), ("trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done", 2)],
)
async def test_ctrl_c_ends_the_command(cli: Cli, control: ControlPlane, script: str, presses: int) -> None:
    process = await cli.start("exec", "-u", "root", "i1", "sh", "-c", script)
    assert process.stdout is not None
    async with asyncio.timeout(20):
        for _ in range(presses):
            assert await process.stdout.readline() in {b"ready\n", b"no\n"}
            process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert b"error" not in err
    async with EnvdClient(control.envd_url, token=TOKEN) as envd:
        assert await envd.processes.list() == []


async def test_nobody_reads_any_more(cli: Cli) -> None:
    process = await cli.start("exec", "-u", "root", "i1", "yes")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        await process.stdout.readline()
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        assert process.stderr is not None
        err = await process.stderr.read()
        assert (await process.wait(), err) == (141, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [(["no-such-program"], 127), (["/no/such/program", "x"], 127), (["/etc/passwd"], 126)],
)
async def test_what_isnt_a_command(cli: Cli, command: list[str], code: int) -> None:
    found, _, err = await run(cli, "i1", *command)
    assert found == code
    assert err.startswith(f"error: {command[0]}: ")


async def test_a_folder_that_isnt_there(cli: Cli) -> None:
    code, _, err = await run(cli, "-w", "/no/such/folder", "i1", "true")
    assert (code, err) == (1, "error: cwd '/no/such/folder' does not exist\n")


async def test_a_paused_sandbox_is_resumed(cli: Cli, control: ControlPlane) -> None:
    assert await run(cli, "i2", "echo", "hi") == (0, b"hi\n", "i2 is paused: resuming it\n")
    assert control.states["i2"] == "running"


async def test_an_unknown_sandbox(cli: Cli) -> None:
    code, _, err = await run(cli, "i7", "true")
    assert code == 1
    assert err.startswith("error: sandbox 'i7' was not found")


async def test_a_sandbox_that_is_paused_meanwhile(cli: Cli, control: ControlPlane) -> None:
    process = await cli.start("exec", "-u", "root", "i1", "sh", "-c", "echo ready; sleep 2")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        await process.stdout.readline()
        control.states["i1"] = "paused"
        control.cut.set()
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.startswith(b"error: i1 was paused")


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (["ls"], ["ls"]),
        (["/bin/true"], ["/bin/true"]),
        (["ls -l"], ["/bin/bash", "-l", "-c", "ls -l"]),
        (["a|b"], ["/bin/bash", "-l", "-c", "a|b"]),
        (["echo", "a b"], ["echo", "a b"]),
        (["--", "ls", "-l"], ["ls", "-l"]),
    ],
)
def test_one_argument_with_syntax_is_a_shells(command: list[str], argv: list[str]) -> None:
    assert shell_line(command) == argv
