"""The local authority: what it makes, keeps and renews."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from aenv.errors import HostNotReady
from aenv.tls import authority
from aenv.tls.authority import Authority, ensure, expiry


def handshake(files: Authority, trusted: Path, name: str) -> None:
    """A TLS handshake in memory, as strict as a client can be. Raises SSLError."""
    client_context = ssl.create_default_context(cafile=str(trusted))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.leaf("sb.test"))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("name", ["sb.test", "api.sb.test", "65535-i0123456789abcdefghij.sb.test"])
@pytest.mark.parametrize("trusted", ["ca.pem", "ca-bundle.pem"])
def test_clients_that_trust_the_authority_accept(tmp_path: Path, name: str, trusted: str) -> None:
    handshake(ensure(tmp_path, "sb.test"), tmp_path / trusted, name)


def test_other_names_and_other_authorities_are_refused(tmp_path: Path) -> None:
    files = ensure(tmp_path / "one", "sb.test")
    other = ensure(tmp_path / "two", "sb.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, files.certificate, "api.other.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, other.certificate, "api.sb.test")


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        files = ensure(tmp_path / "tls", "sb.test")
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes.pop("lock")
    assert modes == {"ca-key.pem": 0o600, "sb.test.pem": 0o600, "ca.pem": 0o644, "ca-bundle.pem": 0o644}
    assert files.folder.stat().st_mode & 0o777 == 0o700


def test_what_is_good_is_kept(tmp_path: Path) -> None:
    files = ensure(tmp_path, "sb.test")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ensure(tmp_path, "sb.test")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    ensure(tmp_path, "other.test")
    assert {path: path.read_bytes() for path in before} == before
    assert files.leaf("other.test").exists()


def test_what_ends_soon_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "LEAF_LIFE", timedelta(days=29))
    files = ensure(tmp_path, "sb.test")
    leaf, root = files.leaf("sb.test").read_bytes(), files.certificate.read_bytes()
    monkeypatch.undo()
    ensure(tmp_path, "sb.test")
    assert files.leaf("sb.test").read_bytes() != leaf
    assert files.certificate.read_bytes() == root


def test_a_renewed_authority_stands_by_what_it_issued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "AUTHORITY_LIFE", timedelta(days=29))
    monkeypatch.setattr(authority, "RENEW_BEFORE", timedelta(days=1))
    files = ensure(tmp_path, "sb.test")
    old, leaf = files.certificate.read_bytes(), files.leaf("sb.test").read_bytes()
    assert expiry(files.leaf("sb.test")) <= expiry(files.certificate)
    monkeypatch.undo()
    files = ensure(tmp_path, None)
    assert files.certificate.read_bytes() != old
    assert files.bundle.read_bytes().endswith(files.certificate.read_bytes())
    assert files.leaf("sb.test").read_bytes() == leaf
    handshake(files, files.certificate, "api.sb.test")


@pytest.mark.parametrize("name", ["sb.test.pem", "ca.pem", "ca-bundle.pem"])
def test_damaged_files_are_made_anew(tmp_path: Path, name: str) -> None:
    ensure(tmp_path, "sb.test")
    (tmp_path / name).write_text("nix")
    files = ensure(tmp_path, "sb.test")
    handshake(files, files.bundle, "api.sb.test")


def test_a_damaged_key_is_never_replaced_silently(tmp_path: Path) -> None:
    ensure(tmp_path, "sb.test").key.write_text("nix")
    with pytest.raises(HostNotReady, match=r"ca-key\.pem"):
        ensure(tmp_path, "sb.test")


def test_a_folder_that_can_not_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostNotReady, match="file"):
        ensure(tmp_path / "file" / "tls", "sb.test")


async def test_many_at_once_make_one(tmp_path: Path) -> None:
    made = await asyncio.gather(*(asyncio.to_thread(ensure, tmp_path, "sb.test") for _ in range(8)))
    handshake(made[0], tmp_path / "ca.pem", "api.sb.test")
    assert sorted(path.name for path in made[0].folder.iterdir()) == [
        "ca-bundle.pem",
        "ca-key.pem",
        "ca.pem",
        "lock",
        "sb.test.pem",
    ]
