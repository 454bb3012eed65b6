"""Traffic to the ports of real sandboxes: tokens, hosts, TLS inside, streams, and sandboxes that wake up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2b import Sandbox, SandboxState
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from aenv.tls.authority import ensure
from tests.server import ROOT, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]

PLAIN, SECURE, CLOSED = 3000, 8443, 3001
NETWORK = {
    "allow_public_traffic": False,
    "mask_request_host": "app.test:${PORT}",
    "https_ports": [SECURE],
}


def start(server: Server, certificate: Path, **options: Any) -> Sandbox:
    """A sandbox with the application on both ports."""
    sandbox = Sandbox.create(
        "base",
        timeout=300,
        api_url=server.url,
        sandbox_url=server.url,
        api_key=server.key,
        **options,
    )
    sandbox.files.write("application.py", (ROOT / "tests" / "sdk" / "application.py").read_bytes())
    sandbox.files.write("certificate.pem", certificate.read_bytes())
    sandbox.commands.run(f"python3 application.py {PLAIN}", background=True, timeout=0)
    sandbox.commands.run(f"python3 application.py {SECURE} certificate.pem", background=True, timeout=0)
    for port in (PLAIN, SECURE):
        probe = f"(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null"
        sandbox.commands.run(f"for i in $(seq 100); do {probe} && exit; sleep 0.1; done; false")
    return sandbox


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody trusts, for servers in sandboxes."""
    return ensure(tmp_path_factory.mktemp("tls"), "in.sandbox").leaf("in.sandbox")


@pytest.fixture(scope="module")
def private(server: Server, certificate: Path) -> Iterator[Sandbox]:
    """A sandbox that needs the traffic token, wakes up on traffic and says something about its ports."""
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    sandbox = start(server, certificate, network=NETWORK, lifecycle=lifecycle)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def original(server: Server, certificate: Path) -> Iterator[Sandbox]:
    """What `public` is copied from."""
    sandbox = start(server, certificate)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def public(original: Sandbox) -> Iterator[Sandbox]:
    """A sandbox that anybody reaches, and that sleeps until it is connected to."""
    (copy,) = original.fork()
    assert isinstance(copy, Sandbox)
    yield copy
    copy.kill()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


def route(sandbox: Sandbox, port: int, *, token: str | None = None) -> dict[str, str]:
    """The headers of a request to the sandbox's port, by its host name."""
    given = {} if token is None else {"e2b-traffic-access-token": token}
    return {"Host": sandbox.get_host(port)} | given


def websocket(server: Server, sandbox: Sandbox, port: int, token: str | None = None) -> ClientConnection:
    """A WebSocket to the sandbox's port, by its headers; to be entered."""
    given = {} if token is None else {"e2b-traffic-access-token": token}
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)} | given
    url = server.url.replace("http", "ws") + "/ws"
    return connect(url, additional_headers=headers, compression=None, proxy=None, open_timeout=60)


def says(connection: ClientConnection, text: str) -> bool:
    """Whether the application sends the text back."""
    connection.send(text)
    return connection.recv(timeout=30) == text


async def test_traffic_token(server: Server, private: Sandbox, http: aiohttp.ClientSession) -> None:
    token = private.traffic_access_token
    assert token
    for given, status in ((None, 403), ("wrong", 403), (token, 200)):
        for port in (PLAIN, SECURE):
            async with http.get(server.url, headers=route(private, port, token=given)) as response:
                assert response.status == status
                assert token not in await response.text()
    for port in (PLAIN, SECURE):
        with pytest.raises(InvalidStatus) as refused:
            websocket(server, private, port)
        assert refused.value.response.status_code == 403
        with websocket(server, private, port, token) as connection:
            assert says(connection, "hello")


async def seen(server: Server, sandbox: Sandbox, port: int, http: aiohttp.ClientSession) -> Any:
    """What the application saw of a request."""
    token = sandbox.traffic_access_token
    async with http.get(server.url, headers=route(sandbox, port, token=token)) as response:
        assert response.status == 200, await response.text()
        return await response.json(content_type=None)


async def test_host_and_tls_are_kept(server: Server, private: Sandbox, http: aiohttp.ClientSession) -> None:
    def check(found: Any, sandbox: Sandbox, port: int) -> None:
        assert found["headers"]["host"] == f"app.test:{port}"
        assert found["headers"]["x-forwarded-host"] == sandbox.get_host(port)

    for port in (PLAIN, SECURE):
        check(await seen(server, private, port, http), private, port)
    (child,) = await asyncio.to_thread(private.fork)
    assert isinstance(child, Sandbox)
    try:
        for port in (PLAIN, SECURE):
            check(await seen(server, child, port, http), child, port)
        assert child.traffic_access_token != private.traffic_access_token
    finally:
        await asyncio.to_thread(child.kill)
    await asyncio.to_thread(private.pause)
    await asyncio.to_thread(private.connect, timeout=300)
    for port in (PLAIN, SECURE):
        check(await seen(server, private, port, http), private, port)


async def state(sandbox: Sandbox) -> SandboxState:
    """The state by the API: asking the agent is traffic, which would change it."""
    return (await asyncio.to_thread(sandbox.get_info)).state


async def test_http_traffic_wakes_a_sandbox(
    server: Server, private: Sandbox, http: aiohttp.ClientSession
) -> None:
    before = (await seen(server, private, PLAIN, http))["visits"]
    await asyncio.to_thread(private.pause)
    async with http.get(server.url, headers=route(private, PLAIN)) as response:
        assert response.status == 403
    assert await state(private) is SandboxState.PAUSED  # who lacks the token can't wake it
    found = await asyncio.gather(*(seen(server, private, PLAIN, http) for _ in range(5)))
    assert sorted(each["visits"] for each in found) == [before + each for each in range(1, 6)]
    assert await state(private) is SandboxState.RUNNING


def test_websocket_traffic_wakes_a_sandbox(server: Server, private: Sandbox) -> None:
    private.pause()
    with websocket(server, private, PLAIN, private.traffic_access_token) as connection:
        assert says(connection, "awake")
    assert private.get_info().state is SandboxState.RUNNING


async def test_sandboxes_sleep_on_unless_they_asked_for_it(
    server: Server, public: Sandbox, http: aiohttp.ClientSession
) -> None:
    assert await seen(server, public, PLAIN, http)
    await asyncio.to_thread(public.pause)
    async with http.get(server.url, headers=route(public, PLAIN)) as response:
        assert response.status == 502
        assert "was not found" in (await response.json())["message"]
    with pytest.raises(InvalidStatus) as refused:
        websocket(server, public, PLAIN)
    assert refused.value.response.status_code == 502
    assert b"was not found" in (refused.value.response.body or b"")


async def test_streams_both_ways(server: Server, public: Sandbox, http: aiohttp.ClientSession) -> None:
    returned = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await returned.wait()  # the rest is sent only after the first part came back
        yield bytes(1 << 20)

    url = server.url + "/echo"
    async with http.post(url, data=body(), headers=route(public, PLAIN)) as response:
        assert await response.content.readexactly(5) == b"first"
        returned.set()
        assert len(await response.read()) == 1 << 20
    for _ in range(3):
        async with http.get(server.url + "/half", headers=route(public, PLAIN)) as response:
            assert await response.read() == b"half"


@pytest.mark.parametrize("port", [PLAIN, CLOSED])
async def test_closed_ports(server: Server, public: Sandbox, http: aiohttp.ClientSession, port: int) -> None:
    async with http.get(server.url, headers=route(public, port)) as response:
        if port == PLAIN:
            assert response.status == 200
            return
        body = await response.json()
        assert (response.status, body["port"], body["sandboxId"]) == (502, port, public.sandbox_id)
        assert "port is not open" in body["message"]


@pytest.mark.parametrize("ending", ["pause", "kill"])
async def test_streams_break_off_with_their_sandbox(
    server: Server, public: Sandbox, http: aiohttp.ClientSession, ending: str
) -> None:
    async with http.get(server.url + "/events", headers=route(public, PLAIN)) as response:
        for number in range(3):
            assert await response.content.readuntil(b"\n\n") == b"data: %d\n\n" % number
        stopping = asyncio.create_task(asyncio.to_thread(getattr(public, ending)))
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await stopping


@pytest.mark.parametrize("ending", ["pause", "kill"])
def test_websockets_break_off_with_their_sandbox(server: Server, public: Sandbox, ending: str) -> None:
    with websocket(server, public, PLAIN) as connection:
        assert says(connection, "hello")
        getattr(public, ending)()
        with pytest.raises(ConnectionClosedError) as closed:
            connection.recv(timeout=30)
        assert closed.value.rcvd is None  # no proper end
