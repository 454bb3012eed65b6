"""Processes in a guest, with the real envd."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from aenv.errors import GuestUnresponsive
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from aenv.guest.events import End, Event, Pty, Stderr, Stdout
from aenv.guest.processes import ProcessStream
from tests.unit.guest.support import NO_PROFILE


async def collect(stream: ProcessStream) -> tuple[bytes, bytes, End]:
    out, err = b"", b""
    async with stream:
        async for event in stream:
            match event:
                case Stdout(data) | Pty(data):
                    out += data
                case Stderr(data):
                    err += data
                case End():
                    return out, err, event
                case _:
                    pass
    raise AssertionError("no end")


async def until(stream: ProcessStream, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(10):
        async for event in stream:
            if isinstance(event, Stdout | Pty):
                seen += event.data
            if text in seen:
                return seen
    raise AssertionError(f"{text!r} never came: {seen!r}")


async def eventually_idle(client: EnvdClient) -> None:
    deadline = time.monotonic() + 5
    while left := await client.processes.list():
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)


async def test_output_and_exit_code_of_a_command(client: EnvdClient) -> None:
    result = await client.processes.run("echo out; echo err >&2; exit 3", envs=NO_PROFILE)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_environment_folder_and_user(client: EnvdClient) -> None:
    result = await client.processes.run(
        "echo $GREETING; pwd; id -un", envs={"GREETING": "hallo", **NO_PROFILE}, cwd="/usr", user="nobody"
    )
    assert result.stdout == b"hallo\n/usr\nnobody\n"


async def test_much_output_arrives_whole(client: EnvdClient) -> None:
    result = await client.processes.run(
        "head -c 20000000 /dev/zero; head -c 3000000 /dev/zero >&2", envs=NO_PROFILE
    )
    assert (len(result.stdout), len(result.stderr)) == (20_000_000, 3_000_000)


async def test_output_streams(client: EnvdClient) -> None:
    stream = await client.processes.start("/bin/sh", ["-c", "echo first; read x; echo got $x"], stdin=True)
    async with stream:
        await until(stream, b"first")
        await client.processes.send_input(stream.pid, b"line\n")
        await until(stream, b"got line")


async def test_standard_input_ends(client: EnvdClient) -> None:
    stream = await client.processes.start("wc", ["-c"], stdin=True)
    data = bytes(range(256)) * 1000
    await client.processes.send_input(stream.pid, data)
    await client.processes.send_input(stream.pid, b"more")
    await client.processes.close_stdin(stream.pid)
    out, _, end = await collect(stream)
    assert (int(out), end.exit_code) == (len(data) + 4, 0)


async def test_without_standard_input_there_is_nothing_to_read(client: EnvdClient) -> None:
    out, _, _ = await collect(await client.processes.start("cat"))
    assert out == b""


async def test_a_terminal_follows_its_size(client: EnvdClient) -> None:
    script = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done"
    stream = await client.processes.start("/bin/bash", ["-c", script], pty=(100, 40))
    async with stream:
        await until(stream, b"40 100")
        await client.processes.resize(stream.pid, 132, 50)
        await until(stream, b"50 132")


async def test_a_terminal_echoes(client: EnvdClient) -> None:
    stream = await client.processes.start("cat", pty=(80, 24))
    async with stream:
        await client.processes.send_input(stream.pid, b"hello\n\x04", pty=True)
        out, _, end = await collect(stream)
    assert (out, end.exit_code) == (b"hello\r\nhello\r\n", 0)


async def test_a_signal_ends_a_process(client: EnvdClient) -> None:
    stream = await client.processes.start("sleep", ["60"])
    assert [info.pid for info in await client.processes.list()] == [stream.pid]
    await client.processes.signal(stream.pid, "SIGKILL")
    _, _, end = await collect(stream)
    assert (end.exit_code, end.shell_code) == (-1, 137)
    with pytest.raises(GuestError) as gone:
        await client.processes.signal(stream.pid, "SIGKILL")
    assert gone.value.code is Code.NOT_FOUND


async def test_a_process_is_killed_at_its_deadline(client: EnvdClient) -> None:
    with pytest.raises(GuestError) as late:
        await client.processes.run("sleep 60", envs=NO_PROFILE, timeout=0.2)
    assert late.value.code is Code.DEADLINE_EXCEEDED
    await eventually_idle(client)


async def test_a_process_goes_on_when_nobody_listens(client: EnvdClient) -> None:
    stream = await client.processes.start("/bin/sh", ["-c", "read x; echo got $x"], stdin=True)
    stream.close()
    again = await client.processes.connect(stream.pid)
    assert again.pid == stream.pid
    await client.processes.send_input(stream.pid, b"it\n")
    out, _, end = await collect(again)
    assert (out, end.exit_code) == (b"got it\n", 0)


async def test_a_closed_stream_has_no_more_events(client: EnvdClient) -> None:
    stream = await client.processes.start("sleep", ["60"])
    stream.close()
    left: list[Event] = [event async for event in stream]
    assert left == []
    await client.processes.signal(stream.pid, "SIGKILL")


async def test_reading_can_be_cancelled(client: EnvdClient) -> None:
    stream = await client.processes.start("sleep", ["60"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), stream:
            await anext(aiter(stream))
    await client.processes.signal(stream.pid, "SIGKILL")


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("/no/such/program", {}, "no such file"),
        ("no-such-program", {}, "not found"),
        ("true", {"cwd": "/no/such/folder"}, "does not exist"),
        ("true", {"user": "nosuchuser"}, "nosuchuser"),
    ],
)
async def test_what_cant_start_says_why(
    client: EnvdClient, command: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(GuestError, match=message):
        await client.processes.start(command, cwd=options.get("cwd"), user=options.get("user"))


async def test_a_process_that_isnt_there(client: EnvdClient) -> None:
    with pytest.raises(GuestError) as missing:
        await client.processes.connect(4_000_000)
    assert missing.value.code is Code.NOT_FOUND


async def test_a_guest_that_ends_breaks_the_stream(client: EnvdClient) -> None:
    stream = await client.processes.start("/bin/sh", ["-c", "read x; kill -9 $PPID"], stdin=True)
    with suppress(GuestUnresponsive):
        await client.processes.send_input(stream.pid, b"now\n")
    with pytest.raises(GuestUnresponsive):
        async with stream:
            [event async for event in stream]
