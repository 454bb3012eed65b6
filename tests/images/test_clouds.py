"""Logins made from an account's keys, with stand-ins for the services of Amazon and Google."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from yarl import URL

from aenv.errors import ImageMissing, ImageUnusable, InvalidRequest
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.clouds import Clouds, sign_aws
from aenv.images.models import Aws, Gcp
from tests.images.builder import image
from tests.images.conftest import AMD64, QUICK
from tests.images.pulling import LAYERS, pull
from tests.images.registries import PASSWORD, USER, Registry
from tests.images.scripted import ScriptedServer, Trouble, for_path, status

KEYS = Aws("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1")


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def account(key: rsa.RSAPrivateKey) -> Gcp:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Gcp(
        json.dumps(
            {
                "type": "service_account",
                "client_email": "puller@project.iam.gserviceaccount.com",
                "private_key": pem.decode(),
                "token_uri": "http://169.254.169.254/",
            }
        )
    )


@pytest.fixture
async def clouded(server: ScriptedServer, tmp_path: Path) -> AsyncIterator[ImageCatalog]:
    """Finds images, with `server` as both clouds and loopback as their registries."""
    clouds = Clouds(
        ecr_api=f"{server.url}/ecr/{{region}}",
        ecr_hosts=r"127\.0\.0\.1",
        google_tokens=f"{server.url}/google",
        google_hosts=r"127\.0\.0\.1",
    )
    async with ImageCatalog(
        docker_config=tmp_path / "none", platform=AMD64, patience=QUICK, clouds=clouds
    ) as made:
        yield made


def gives(answer: object) -> Trouble:
    async def act(_request: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    return act


def test_requests_are_signed_as_in_amazons_test_suite() -> None:
    now = datetime(2015, 8, 30, 12, 36, 0, tzinfo=UTC)
    signed = sign_aws(KEYS, URL("https://example.amazonaws.com/"), {}, b"", service="service", now=now)
    assert signed["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    )


async def test_amazon_gives_a_login_for_its_registry(
    secret_registry: Registry, server: ScriptedServer, clouded: ImageCatalog, blobs: BlobStore
) -> None:
    name = secret_registry.push("ecr", image(LAYERS))
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    server.troubles.append(for_path("/ecr/", gives({"authorizationData": [{"authorizationToken": token}]})))
    await pull(clouded, blobs, name, KEYS)
    (asked,) = server.asked("/ecr/")
    assert (asked.method, asked.path) == ("POST", "/ecr/us-east-1")
    assert asked.headers["X-Amz-Target"] == "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
    assert asked.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-target" in asked.headers["Authorization"]
    assert not any(KEYS.secret_access_key in value for value in asked.headers.values())


async def test_keys_that_amazon_refuses(
    registry: Registry, server: ScriptedServer, clouded: ImageCatalog, blobs: BlobStore
) -> None:
    name = registry.push("ecr", image(LAYERS))
    server.troubles.append(status(400))
    with pytest.raises(ImageMissing, match="AWS refuses the keys"):
        await pull(clouded, blobs, name, KEYS)


@pytest.mark.parametrize(
    "answer", [{}, {"authorizationData": []}, {"authorizationData": [{"authorizationToken": "?"}]}]
)
async def test_an_answer_of_amazon_that_is_no_login(
    registry: Registry, server: ScriptedServer, clouded: ImageCatalog, blobs: BlobStore, answer: object
) -> None:
    name = registry.push("ecr", image(LAYERS))
    server.troubles.append(gives(answer))
    with pytest.raises(ImageUnusable, match="can't be read"):
        await pull(clouded, blobs, name, KEYS)


async def test_keys_are_used_for_the_clouds_own_registries_only(
    catalog: ImageCatalog, blobs: BlobStore, account: Gcp
) -> None:
    for host in (
        "quay.io",
        "1.dkr.ecr.us-east-1.amazonaws.com",
        "123456789012.dkr.ecr.x.amazonaws.com.evil.org",
    ):
        with pytest.raises(InvalidRequest, match="AWS keys are for registries such as"):
            await pull(catalog, blobs, f"{host}/app", KEYS)
    for host in ("quay.io", "gcr.io.evil.org", "evil-gcr.io"):
        with pytest.raises(InvalidRequest, match="a Google service account is for a registry such as"):
            await pull(catalog, blobs, f"{host}/app", account)


async def test_a_region_that_is_none(catalog: ImageCatalog, blobs: BlobStore) -> None:
    keys = Aws("A", "B", "evil.org/#")
    with pytest.raises(InvalidRequest, match="not the name of an AWS region"):
        await pull(catalog, blobs, "123456789012.dkr.ecr.us-east-1.amazonaws.com/app", keys)


async def test_google_gives_a_token_for_its_registry(
    server: ScriptedServer, clouded: ImageCatalog, blobs: BlobStore, account: Gcp, key: rsa.RSAPrivateKey
) -> None:
    async def basic(request: web.Request) -> web.StreamResponse | None:
        wanted = "Basic " + base64.b64encode(b"oauth2accesstoken:google-token").decode()
        if request.headers.get("Authorization") == wanted:
            return None
        return await status(401, {"WWW-Authenticate": "Basic realm=google"})(request)

    server.troubles += [
        for_path("/google", gives({"access_token": "google-token", "expires_in": 3599})),
        for_path("/v2/org", basic),
    ]
    await pull(clouded, blobs, server.add(image(LAYERS)), account)
    (asked,) = server.asked("/google")
    assert asked.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, claims, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in asked.form["assertion"].split(".")
    )
    assert json.loads(head) == {"alg": "RS256", "typ": "JWT"}
    said = json.loads(claims)
    assert said["iss"] == "puller@project.iam.gserviceaccount.com"
    assert said["aud"] == f"{server.url}/google"
    assert said["exp"] - said["iat"] == 3600
    signed = asked.form["assertion"].rpartition(".")[0].encode()
    key.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())


async def test_a_service_account_that_google_refuses(
    server: ScriptedServer, clouded: ImageCatalog, blobs: BlobStore, account: Gcp
) -> None:
    name = server.add(image(LAYERS))
    server.troubles.append(for_path("/google", status(401)))
    with pytest.raises(ImageMissing, match="Google refuses the service account"):
        await pull(clouded, blobs, name, account)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"client_email": "a", "private_key": "secret words"}',
        '{"client_email": "a", "private_key": "-----BEGIN PRIVATE KEY-----\\nAAAA\\n-----END PRIVATE KEY-----"}',  # noqa: E501
    ],
)
async def test_json_that_is_no_key(catalog: ImageCatalog, blobs: BlobStore, text: str) -> None:
    with pytest.raises(InvalidRequest, match="not the JSON key of a Google service account") as refused:
        await pull(catalog, blobs, "gcr.io/app", Gcp(text))
    assert "secret words" not in str(refused.value)
