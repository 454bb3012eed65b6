"""Token servers, redirects to stores of blobs, and that no secret goes where it doesn't belong."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from aenv.errors import ImageMissing, ImageUnusable, RegistryUnavailable
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import UserPassword
from tests.images.builder import files, image
from tests.images.pulling import pull
from tests.images.scripted import ScriptedServer, Trouble, for_path, needs_token, part_of, status

LOGIN = UserPassword("me", "my-secret-password")
MADE = image([files({"a": b"1"}), files({"b": b"2"})])
LAYER = MADE.layers[0]


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def gives(answer: object) -> Trouble:
    async def act(_request: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    return act


def redirects(target: Callable[[web.Request], str]) -> Trouble:
    async def act(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": target(request)})

    return act


@pytest.fixture
def guarded(server: ScriptedServer, other_server: ScriptedServer) -> str:
    """The name of an image that needs tokens, of which the other server gives the right one."""
    server.troubles.append(needs_token(f"{other_server.url}/token", lambda token: token == "right-token"))
    other_server.troubles.append(for_path("/token", gives({"token": "right-token", "expires_in": 300})))
    return server.add(MADE)


async def test_a_token_is_got_once_and_for_pulls_only(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    await pull(catalog, blobs, guarded, LOGIN)
    (asked,) = other_server.asked("/token")
    assert dict(asked.query) == {
        "account": "me",
        "service": "the, service",
        "scope": "repository:org/app:pull",
    }
    assert asked.headers["Authorization"] == basic("me", "my-secret-password")


async def test_the_password_goes_to_the_token_server_only(
    guarded: str, server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    await pull(catalog, blobs, guarded, LOGIN)
    sent = {each.headers.get("Authorization") for each in server.seen}
    assert sent == {None, "Bearer right-token"}


async def test_nobody_gets_a_token_as_nobody(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    await pull(catalog, blobs, guarded)
    (asked,) = other_server.asked("/token")
    assert "Authorization" not in asked.headers
    assert "account" not in asked.query


async def test_a_token_that_expires_is_renewed(
    server: ScriptedServer, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    given: list[str] = []

    async def next_token(_request: web.Request) -> web.StreamResponse:
        given.append(f"token-{len(given)}")
        return web.json_response({"access_token": given[-1]})

    used: list[str] = []

    def accepted(token: str) -> bool:
        used.append(token)
        return token == given[-1] and used.count(token) <= 2

    server.troubles.append(needs_token(f"{other_server.url}/token", accepted))
    other_server.troubles.append(for_path("/token", next_token))
    await pull(catalog, blobs, server.add(MADE))
    assert len(given) >= 2


async def test_an_identity_token_is_exchanged(  # noqa: PLR0917 - fixtures
    guarded: str,
    server: ScriptedServer,
    other_server: ScriptedServer,
    catalog: ImageCatalog,
    blobs: BlobStore,
    tmp_path: Path,
) -> None:
    config = tmp_path / "docker" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"auths": {server.host: {"identitytoken": "refresh-me"}}}))
    await pull(catalog, blobs, guarded)
    (asked,) = other_server.asked("/token")
    assert asked.method == "POST"
    assert asked.form["grant_type"] == "refresh_token"
    assert asked.form["refresh_token"] == "refresh-me"
    assert asked.form["scope"] == "repository:org/app:pull"


async def test_a_registry_token_is_sent_as_it_is(  # noqa: PLR0917 - fixtures
    guarded: str,
    server: ScriptedServer,
    other_server: ScriptedServer,
    catalog: ImageCatalog,
    blobs: BlobStore,
    tmp_path: Path,
) -> None:
    config = tmp_path / "docker" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"auths": {server.host: {"registrytoken": "right-token"}}}))
    await pull(catalog, blobs, guarded)
    assert not other_server.seen


@pytest.mark.parametrize("code", [400, 401, 403])
async def test_a_refusal_of_the_token_server(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, code: int
) -> None:
    other_server.troubles.insert(0, status(code))
    with pytest.raises(ImageMissing, match="refuses org/app to the credentials") as refused:
        await pull(catalog, blobs, guarded, LOGIN)
    assert "secret" not in refused.value.message
    with pytest.raises(ImageMissing, match="or only for those who log in"):
        await pull(catalog, blobs, guarded)


async def test_a_token_that_the_registry_does_not_take(
    guarded: str,
    server: ScriptedServer,
    other_server: ScriptedServer,
    catalog: ImageCatalog,
    blobs: BlobStore,
) -> None:
    other_server.troubles.insert(0, gives({"token": "wrong-token"}))
    with pytest.raises(ImageMissing, match="refuses org/app"):
        await pull(catalog, blobs, guarded, LOGIN)
    assert len([each for each in server.seen if "/manifests/" in each.path]) == 2


@pytest.mark.parametrize("answer", [{}, {"token": ""}, {"token": "line\nfeed"}, {"token": 7}, [], "text"])
async def test_a_token_server_that_gives_nonsense(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, answer: object
) -> None:
    other_server.troubles.insert(0, gives(answer))
    with pytest.raises(ImageUnusable, match="sends for tokens, gives none"):
        await pull(catalog, blobs, guarded)


async def test_a_token_server_that_fails_for_a_while(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    other_server.troubles.insert(0, for_path("/token", status(503), times=2))
    await pull(catalog, blobs, guarded)
    other_server.troubles.insert(0, status(503))
    with pytest.raises(RegistryUnavailable, match="503"):
        await pull(catalog, blobs, guarded)


@pytest.mark.parametrize(
    "challenge",
    [
        "Bearer",
        'Bearer realm=""',
        'Bearer realm="nowhere"',
        'Bearer realm="http://token.example/"',
        'Bearer realm="file:///etc/passwd"',
        'Bearer realm="http://["',
        'Bearer realm="https://a:99999/"',
        'Bearer realm="https://a..b/"',
    ],
)
async def test_a_realm_that_cannot_be_asked(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, challenge: str
) -> None:
    server.troubles.append(for_path("/v2/org", status(401, {"WWW-Authenticate": challenge})))
    with pytest.raises(ImageUnusable, match=r"where tokens are to be had|without TLS"):
        await pull(catalog, blobs, server.add(MADE), LOGIN)
    assert not any("Authorization" in each.headers for each in server.seen)


@pytest.mark.parametrize("challenge", ["", "Digest realm=x", "Negotiate"])
async def test_a_way_to_log_in_that_is_not_known(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, challenge: str
) -> None:
    server.troubles.append(for_path("/v2/org", status(401, {"WWW-Authenticate": challenge})))
    with pytest.raises(ImageMissing, match="refuses org/app"):
        await pull(catalog, blobs, server.add(MADE), LOGIN)


async def test_a_store_of_blobs_elsewhere_gets_no_secret(
    guarded: str,
    server: ScriptedServer,
    other_server: ScriptedServer,
    catalog: ImageCatalog,
    blobs: BlobStore,
) -> None:
    async def blob(request: web.Request) -> web.StreamResponse:
        return part_of(MADE.blobs[request.path.removeprefix("/store/")], request)

    other_server.troubles.insert(0, for_path("/store/", blob))
    elsewhere = redirects(
        lambda request: f"{other_server.url}/store/{request.path.rpartition('/')[2]}?sign=1"
    )
    server.troubles.append(for_path("/blobs/", elsewhere))
    await pull(catalog, blobs, guarded, LOGIN)
    asked = other_server.asked("/store/")
    assert len(asked) == 3
    assert not any("Authorization" in each.headers for each in asked)


async def test_a_redirect_within_a_registry_keeps_the_token(
    guarded: str, server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    server.troubles.append(for_path("/blobs/", redirects(lambda request: f"{request.path}?x"), times=3))
    await pull(catalog, blobs, guarded, LOGIN)
    assert all(each.headers.get("Authorization") for each in server.asked("/blobs/"))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "redirects"),
        ("http://store.example/blob", r"sends on to store\.example without TLS"),
        ("ftp://store.example/blob", "without TLS"),
        ("file:///etc/passwd", "no valid address"),
        ("http://[", "no valid address"),
        ("https://é.example/", "no valid address"),
        ("https://a:99999/", "no valid address"),
        ("https://a..b/", "no valid address"),
        ("https://a:b/", "no valid address"),
        ("https:///blob", "no valid address"),
    ],
)
async def test_redirects_that_lead_nowhere(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, target: str, why: str
) -> None:
    server.troubles.append(for_path("/blobs/", redirects(lambda _request: target)))
    with pytest.raises(ImageUnusable, match=why):
        await pull(catalog, blobs, server.add(MADE))


async def test_secrets_in_addresses_and_headers_are_not_told(
    guarded: str,
    server: ScriptedServer,
    catalog: ImageCatalog,
    blobs: BlobStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    signed = "https://127.0.0.1:9/store?signature=signed-secret"
    server.troubles.append(for_path(LAYER, redirects(lambda _request: signed)))
    with pytest.raises(RegistryUnavailable) as failed:
        await pull(catalog, blobs, guarded, LOGIN)
    error: BaseException | None = failed.value
    assert "secret" not in str(error)
    assert "token" not in str(error)
    assert "secret" not in caplog.text


async def test_tokens_are_not_shared_between_pulls(
    guarded: str, other_server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    await asyncio.gather(pull(catalog, blobs, guarded, LOGIN), pull(catalog, blobs, guarded))
    sent = {each.headers.get("Authorization") for each in other_server.asked("/token")}
    assert sent == {None, basic("me", "my-secret-password")}
