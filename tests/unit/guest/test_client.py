"""Health, identity and metrics of a guest; guests that don't answer, or answer nonsense, never hold us."""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest

from aenv.errors import GuestUnresponsive, RuntimeFailure
from aenv.guest import client as client_module
from aenv.guest.client import EnvdClient, InitRequest, new_session
from aenv.guest.connect import MAX_MESSAGE
from aenv.guest.errors import Code, GuestError
from tests.unit.guest.support import NO_PROFILE, Answer, free_port, saying, serving, silent


async def test_a_guest_is_healthy_as_soon_as_it_answers(envd_url: str) -> None:
    async with EnvdClient(envd_url) as client:
        version = await client.wait_healthy(10)
        assert version == await client.health()
        assert version is not None
        assert version[0].isdigit()


async def test_waiting_for_a_guest_ends() -> None:
    async with EnvdClient(f"http://127.0.0.1:{free_port()}") as client:
        began = time.monotonic()
        with pytest.raises(GuestUnresponsive, match=r"within 0\.2 s"):
            await client.wait_healthy(0.2)
        assert time.monotonic() - began < 1


async def test_waiting_for_a_guest_that_says_nothing_ends() -> None:
    async with serving(silent) as url, EnvdClient(url) as client:
        with pytest.raises(GuestUnresponsive):
            await client.wait_healthy(0.2)


async def test_waiting_can_be_cancelled() -> None:
    async with serving(silent) as url, EnvdClient(url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.wait_healthy(60)


async def test_metrics(client: EnvdClient) -> None:
    metrics = await client.metrics()
    assert metrics.cpu_count >= 1
    assert 0 < metrics.mem_used < metrics.mem_total
    assert 0 < metrics.disk_used < metrics.disk_total


async def test_init_gives_identity_and_environment(client: EnvdClient) -> None:
    await client.init(InitRequest("i123", "t456", access_token="secret", env_vars={"COLOUR": "blue"}))

    with pytest.raises(GuestError) as refused:
        await client.processes.list()
    assert refused.value.code is Code.UNAUTHENTICATED

    client.set_token("secret")
    result = await client.processes.run("echo $E2B_SANDBOX_ID $E2B_TEMPLATE_ID $COLOUR", envs=NO_PROFILE)
    assert result.stdout == b"i123 t456 blue\n"
    client.set_token(None)
    with pytest.raises(GuestError):
        await client.metrics()


def test_an_init_request_is_what_envd_takes() -> None:
    fields = InitRequest("i1", "t1", timestamp=5, entropy=b"\0\1").fields()
    assert fields == {
        "sandboxId": "i1",
        "templateId": "t1",
        "envVars": {},
        "timestamp": 5,
        "entropy": "AAE=",
    }
    assert InitRequest("i1", "t1").entropy != InitRequest("i1", "t1").entropy
    assert abs(InitRequest("i1", "t1").fields()["timestamp"] - time.time_ns()) < 10**9


async def test_a_connection_that_the_guest_closed_is_no_failure() -> None:
    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")  # The second request on the connection is dropped.

    async with serving(one_answer) as url, EnvdClient(url) as client:
        await client.freeze()
        await client.unfreeze()
        await client.health()


@pytest.mark.parametrize("wait", [0.0, 0.2])
async def test_a_guest_that_was_slow_to_listen_is_told_the_time_once_more(
    wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LATE", 0.1)
    told: list[tuple[bytes, int]] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            body = json.loads(await reader.readexactly(length))
            told.append((head.split()[1], body["timestamp"]))
            await asyncio.sleep(wait)
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with serving(slow) as url, EnvdClient(url) as client:
        await client.init(InitRequest("i1", "t1"))
    assert [route for route, _ in told] == ([b"/init", b"/unfreeze"] if wait else [b"/init"])
    assert told[-1][1] - told[0][1] >= wait * 1e9


async def test_a_shared_session_stays_open(envd_url: str) -> None:
    async with new_session() as session:
        async with EnvdClient(envd_url, session=session) as client:
            await client.wait_healthy(10)
        async with EnvdClient(envd_url, session=session) as client:
            await client.health()


def frame(flags: int, payload: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BI", flags, len(payload) if length is None else length) + payload


def stream_of(*frames: bytes) -> Answer:
    return saying(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nConnection: close\r\n\r\n"
        + b"".join(frames)
    )


STARTED = frame(0, json.dumps({"event": {"start": {"pid": 1}}}).encode())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), RuntimeFailure),
        (saying(b""), GuestUnresponsive),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno!"), RuntimeFailure),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"), RuntimeFailure),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), GuestUnresponsive),
        (saying(b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nno!"), GuestError),
    ],
)
async def test_calls_answered_with_nonsense(answer: Answer, error: type[Exception]) -> None:
    async with serving(answer) as url, EnvdClient(url) as client:
        with pytest.raises(error):
            await client.processes.list()


async def test_a_call_that_isnt_answered_ends() -> None:
    async with serving(silent) as url, EnvdClient(url, timeout=0.1) as client:
        with pytest.raises(GuestUnresponsive):
            await client.processes.list()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), RuntimeFailure),
        (stream_of(), GuestUnresponsive),
        (stream_of(b"\0\0"), GuestUnresponsive),
        (stream_of(frame(0, b"{", 100)), GuestUnresponsive),
        (stream_of(frame(0, b"", MAX_MESSAGE + 1)), RuntimeFailure),
        (stream_of(frame(1, b"{}")), RuntimeFailure),
        (stream_of(frame(0, b"nonsense")), RuntimeFailure),
        (stream_of(frame(0, b"[" * 100_000)), RuntimeFailure),
        (stream_of(frame(0, b"{}")), RuntimeFailure),
        (stream_of(frame(2, b"{}")), RuntimeFailure),
        (stream_of(frame(2, b'{"error":{"code":"not_found","message":"gone"}}')), GuestError),
        (stream_of(frame(2, b'{"error":7}')), GuestError),
        (stream_of(STARTED), GuestUnresponsive),
        (stream_of(STARTED, frame(2, b"{}")), RuntimeFailure),
    ],
)
async def test_streams_of_nonsense(answer: Answer, error: type[Exception]) -> None:
    async with serving(answer) as url, EnvdClient(url) as client:
        with pytest.raises(error):
            await client.processes.run("true")


@pytest.mark.parametrize("status", [302, 307])
async def test_a_guest_can_not_send_us_elsewhere(status: int) -> None:
    visits: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with serving(elsewhere) as target:
        redirect = f"HTTP/1.1 {status} X\r\nLocation: {target}/init\r\nContent-Length: 0\r\n\r\n"
        async with serving(saying(redirect.encode())) as url, EnvdClient(url) as client:
            with pytest.raises(RuntimeFailure, match="redirect"):
                await client.init(InitRequest("i123", "t456"))
            with pytest.raises(RuntimeFailure, match="redirect"):
                await client.wait_healthy(5)
    assert not visits
