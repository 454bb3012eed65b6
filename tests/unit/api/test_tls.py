"""The server's domain: the API and sandboxes over TLS, beside plain HTTP."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from aenv.api.server import serve, usage
from aenv.errors import HostNotReady
from aenv.node import Node
from aenv.settings import Settings
from aenv.tls.authority import ensure
from aenv.tls.certificates import open_certificates
from tests.server import free_port
from tests.unit.api.support import Server, fake_settings, running


class Here(AbstractResolver):
    """Finds every name on this machine."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        """As `AbstractResolver.resolve`."""
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """As `AbstractResolver.close`."""


def trusting(authority: Path) -> aiohttp.ClientSession:
    """A client that trusts the authority and finds every name here."""
    context = ssl.create_default_context(cafile=str(authority))
    connector = aiohttp.TCPConnector(ssl=context, resolver=Here())
    return aiohttp.ClientSession(connector=connector)


async def is_served(settings: Settings, authority: Path) -> None:
    """Fails unless the API answers a client that trusts `authority`."""
    url = f"https://api.{settings.public_domain}/health"
    async with trusting(authority) as session, session.get(url) as response:
        assert response.status == 204


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with a domain."""
    async with running(fake_settings(tmp_path, domain=f"sb.test:{free_port()}")) as started:
        yield started


async def test_api_and_sandboxes_answer_below_the_domain(server: Server) -> None:
    domain = server.settings.public_domain
    created = (await server.request("POST", "/v2/sandboxes", {"templateID": "base"})).body
    assert created["domain"] == domain
    sandbox_id, key = created["sandboxID"], {"X-API-KEY": server.key}
    async with trusting(server.settings.tls_dir / "ca.pem") as session:
        async with session.get(f"https://api.{domain}/sandboxes/{sandbox_id}", headers=key) as response:
            assert (response.status, (await response.json())["domain"]) == (200, domain)
        async with session.get(f"https://api.{domain}/sandboxes/{sandbox_id}") as response:
            assert response.status == 401
        async with session.get(f"https://49983-{sandbox_id}.{domain}/health") as response:
            assert response.status == 204
        async with session.get(f"https://1-{sandbox_id}.{domain}/") as response:
            assert response.status == 502
            assert "port is not open" in await response.text()
        async with session.get(f"https://1-inothing0000000000000.{domain}/") as response:
            assert response.status == 502
            assert "was not found" in await response.text()
        async with session.get(f"https://x-{sandbox_id}.{domain}/", headers=key) as response:
            assert response.status == 404


async def test_plain_http_stays(server: Server) -> None:
    sandbox_id = await server.create()
    host = {"Host": f"49983-{sandbox_id}.{server.settings.public_domain}"}
    async with server.session.get(server.url + "/health", headers=host) as response:
        assert response.status == 204


async def test_strangers_on_the_tls_port_are_harmless(server: Server) -> None:
    port = server.settings.listen_tls_port
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if sent:
            async with asyncio.timeout(10):
                assert b"HTTP" not in await reader.read()
        writer.close()
    await is_served(server.settings, server.settings.tls_dir / "ca.pem")


async def test_the_users_own_certificate(tmp_path: Path) -> None:
    files = ensure(tmp_path / "own", "sb.test")
    settings = fake_settings(tmp_path, domain="sb.test", tls_port=free_port(), tls_cert=files.leaf("sb.test"))
    async with running(settings):
        await is_served(settings, files.certificate)
    assert not settings.tls_dir.exists()
    assert "aenv certs" not in usage("http://h", settings)


async def test_certificates_that_can_not_be_used_are_told_before_the_node_starts(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("nix")
    for cert in (tmp_path / "cert", tmp_path / "missing"):
        settings = fake_settings(tmp_path, domain="sb.test", tls_port=free_port(), tls_cert=cert)
        with pytest.raises(HostNotReady, match="AENV_TLS_CERT"):
            await serve(settings, Node(settings), asyncio.Event(), ready=print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = fake_settings(tmp_path, domain="sb.test", tls_port=taken.getsockname()[1])
        with pytest.raises(HostNotReady, match="AENV_TLS_PORT"):
            await serve(settings, Node(settings), asyncio.Event(), ready=print)
    assert not (tmp_path / "aenv.db").exists()


async def test_a_renewed_file_is_used_without_a_restart(tmp_path: Path) -> None:
    old, new = ensure(tmp_path / "old", "sb.test"), ensure(tmp_path / "new", "sb.test")
    used = tmp_path / "used.pem"
    used.write_bytes(old.leaf("sb.test").read_bytes())
    settings = fake_settings(tmp_path, domain="sb.test", tls_cert=used)
    certificates = await open_certificates(settings, "sb.test")

    async def shown(trusted: Path) -> None:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=certificates.context)
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(trusted))
        try:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="sb.test"
            )
            writer.close()
            await writer.wait_closed()
        finally:
            server.close()
            await server.wait_closed()

    await shown(old.certificate)
    used.write_bytes(new.leaf("sb.test").read_bytes())
    certificates.load()
    await shown(new.certificate)
    used.write_text("nix")
    with pytest.raises(HostNotReady):
        certificates.load()
    await shown(new.certificate)


@pytest.mark.parametrize(
    ("given", "public", "port"),
    [
        ({"domain": "sb.test"}, "sb.test:8443", 8443),
        ({"domain": "SB.Test:18443"}, "sb.test:18443", 18443),
        ({"domain": "sb.test", "tls_port": 443}, "sb.test", 443),
        ({"domain": "sb.test", "tls_port": 9000}, "sb.test:9000", 9000),
        ({"domain": "sb.test:443", "tls_port": 9000}, "sb.test:443", 9000),
        ({}, None, 8443),
    ],
)
def test_domain_and_port(tmp_path: Path, given: dict[str, Any], public: str | None, port: int) -> None:
    settings = fake_settings(tmp_path, **given)
    assert (settings.public_domain, settings.listen_tls_port) == (public, port)


@pytest.mark.parametrize(
    "given",
    [
        {"domain": "localhost"},
        {"domain": "a..b"},
        {"domain": "sb.test:0"},
        {"domain": "sb.test:70000"},
        {"domain": "http://sb.test"},
        {"domain": "x" * 64 + ".test"},
        {"domain": "*.sb.test"},
        {"tls_cert": "cert"},
        {"tls_port": "8443"},
        {"domain": "sb.test", "tls_key": "key"},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"domain|tls_cert"):
        Settings(home=tmp_path, **given)  # type: ignore[arg-type]
