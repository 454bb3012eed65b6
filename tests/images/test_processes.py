"""What only shows from outside: memory, a process that is killed, certificates, proxies."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from aenv.errors import ImageUnusable, RegistryUnavailable
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import UserPassword
from aenv.images.transport import Transport, _proxy
from tests.images.builder import files, image
from tests.images.pulling import LAYERS, pull, until
from tests.images.registries import Registry
from tests.images.scripted import ScriptedServer, cut_after, for_path, scripted_server
from tests.server import ROOT

MIB = 1 << 20
PULLER = Path(__file__).parent / "puller.py"


async def puller(
    name: str, folder: Path, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        PULLER,
        name,
        folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
    )


async def test_a_large_layer_is_never_in_memory(registry: Registry, tmp_path: Path) -> None:
    made = image([files({"big": os.urandom(96 * MIB)})], compression="none")
    output, _ = await (await puller(registry.push("large", made), tmp_path)).communicate()
    said = json.loads(output)
    assert said["digest"] == made.digest
    assert said["kib"] < 32 * 1024


async def test_what_a_killed_process_had_is_not_fetched_again(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    made = image([files({"a": os.urandom(4 * MIB)})], compression="none")
    (digest,) = made.layers
    name = server.add(made)
    stall = asyncio.Event()
    server.troubles.append(for_path(digest, cut_after(made.blobs[digest], MIB, stall=stall), times=1))
    process = await puller(name, tmp_path / "blobs")
    partial = tmp_path / "blobs" / "partial" / digest.partition(":")[2]
    await until(lambda: partial.exists() and partial.stat().st_size == MIB)
    process.kill()
    await process.communicate()
    stall.set()
    await pull(catalog, blobs, name)
    ranges = [each.headers.get("Range") for each in server.asked(digest)]
    assert ranges == [None, f"bytes={MIB}-"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody but itself vouches for, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry of a test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


async def test_tls_is_used_where_it_is_and_certificates_are_checked(
    catalog: ImageCatalog, blobs: BlobStore, certificate: Path, tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    made = image(LAYERS)
    async with scripted_server(context) as server:
        name = server.add(made)
        with pytest.raises(RegistryUnavailable, match="a certificate that is not trusted"):
            await pull(catalog, blobs, name, UserPassword("me", "secret"))
        assert not server.seen
        process = await puller(name, tmp_path / "trusted", {"SSL_CERT_FILE": str(certificate)})
        output, errors = await process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(output)["digest"] == made.digest


@pytest.mark.parametrize(
    ("host", "url", "allowed"),
    [
        ("registry.example", "https://store.example/blob", True),
        ("registry.example", "http://store.example/blob", False),
        ("registry.example", "http://127.0.0.1:8000/sandboxes", False),
        ("registry.example", "http://lab.example/blob", False),
        ("lab.example", "http://lab.example/blob", True),
        ("lab.example:80", "http://lab.example:8080/blob", True),
        ("127.0.0.1:5000", "http://localhost/blob", True),
        ("127.0.0.1:5000", "http://registry.example/blob", False),
    ],
)
def test_a_registry_elsewhere_cannot_send_to_what_has_no_tls(host: str, url: str, allowed: bool) -> None:
    transport = Transport(insecure=["lab.example"])
    if allowed:
        transport.check_target(URL(url), host)
    else:
        with pytest.raises(ImageUnusable, match="without TLS"):
            transport.check_target(URL(url), host)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://registry.example/v2/", "http://proxy.example:3128"),
        ("https://quiet.example/v2/", None),
        ("http://registry.example/v2/", None),
        ("https://127.0.0.1:5000/v2/", None),
        ("https://localhost:5000/v2/", None),
    ],
)
def test_proxies_of_the_environment(url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "quiet.example")
    found = _proxy(URL(url))
    assert found == (None if proxy is None else URL(proxy))
