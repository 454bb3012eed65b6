"""Logins at the registries of clouds, made from an account's keys.

Sources: https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_GetAuthorizationToken.html, signed as
https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html says, and
https://developers.google.com/identity/protocols/oauth2/service-account#httprest. Each is one signed request,
which is why no cloud's own library is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import BaseModel, Field, ValidationError
from yarl import URL

from aenv.errors import ImageMissing, ImageUnusable, InvalidRequest
from aenv.images.auth import Login
from aenv.images.models import Aws, Gcp
from aenv.images.reference import host_name
from aenv.images.retries import retried
from aenv.images.transport import Transport, read_body

_ANSWER_BYTES: Final = 1 << 20
_REGION: Final = re.compile(r"[a-z]{2}(?:-[a-z0-9]+)+")
_ECR_ACTION: Final = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLE_USER: Final = "oauth2accesstoken"
_TOKEN_SECONDS: Final = 3600


@dataclass(frozen=True)
class Clouds:
    """Where clouds have their services; a login goes to no registry but their own."""

    ecr_api: str = "https://api.ecr.{region}.{domain}/"
    ecr_hosts: str = r"[0-9]{12}\.dkr\.ecr(?:-fips)?\.[a-z0-9-]+\.(amazonaws\.com(?:\.cn)?)"
    google_tokens: str = "https://oauth2.googleapis.com/token"
    google_hosts: str = r"(?:[a-z0-9-]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev"


class _EcrToken(BaseModel):
    token: str = Field(alias="authorizationToken", repr=False)


class _EcrAnswer(BaseModel):
    data: list[_EcrToken] = Field(alias="authorizationData", min_length=1)


class _GoogleAnswer(BaseModel):
    access_token: str = Field(repr=False)


class _ServiceAccount(BaseModel):
    client_email: str
    private_key: str = Field(repr=False)


async def ecr_login(transport: Transport, host: str, keys: Aws, clouds: Clouds) -> Login:
    """The login at an Amazon registry, for twelve hours.

    Raises InvalidRequest if `host` is none or the region can't be one, ImageMissing if the keys are refused.
    """
    found = re.fullmatch(clouds.ecr_hosts, host_name(host))
    if found is None:
        raise InvalidRequest(
            f"AWS keys are for registries such as ID.dkr.ecr.REGION.amazonaws.com, not {host}"
        )
    if _REGION.fullmatch(keys.region) is None:
        raise InvalidRequest(f"{keys.region!r} is not the name of an AWS region")
    domain = found[1] if found.groups() else ""
    url = URL(clouds.ecr_api.format(region=keys.region, domain=domain))
    body = b"{}"

    async def ask() -> tuple[int, bytes]:
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": _ECR_ACTION}
        signed = sign_aws(keys, url, headers, body, service="ecr", now=datetime.now(UTC))
        authorization = signed.pop("Authorization")
        async with transport.request(
            "POST", url, headers=signed, authorization=authorization, data=body
        ) as response:
            return response.status, await read_body(response, _ANSWER_BYTES)

    status, answer = await retried(ask, transport.patience)
    if status != 200:
        raise ImageMissing(f"AWS refuses the keys that were given for {host} (status {status})")
    try:
        token = _EcrAnswer.model_validate_json(answer).data[0].token
        username, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (ValidationError, binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise ImageUnusable(f"AWS gives a login for {host} that can't be read") from None
    return Login(username, password)


def sign_aws(
    keys: Aws, url: URL, headers: Mapping[str, str], body: bytes, *, service: str, now: datetime
) -> dict[str, str]:
    """`headers` with those that sign a POST without a query, by AWS Signature Version 4."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{keys.region}/{service}/aws4_request"
    host = url.raw_authority
    signed = {**headers, "X-Amz-Date": stamp}
    lines = {name.lower(): value for name, value in {**signed, "Host": host}.items()}
    names = ";".join(sorted(lines))
    canonical = "\n".join(
        [
            *("POST", url.raw_path, ""),
            *(f"{name}:{lines[name]}" for name in sorted(lines)),
            *("", names, hashlib.sha256(body).hexdigest()),
        ]
    )
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    signed["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return signed


async def google_login(transport: Transport, host: str, account: Gcp, clouds: Clouds) -> Login:
    """The login at a Google registry, for an hour.

    Raises InvalidRequest if `host` is none or the JSON is no key, ImageMissing if the key is refused.
    """
    if re.fullmatch(clouds.google_hosts, host_name(host)) is None:
        raise InvalidRequest(
            f"a Google service account is for a registry such as REGION-docker.pkg.dev, not {host}"
        )
    assertion = _google_assertion(account, clouds.google_tokens)
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}

    async def ask() -> tuple[int, bytes]:
        async with transport.request("POST", URL(clouds.google_tokens), data=form) as response:
            return response.status, await read_body(response, _ANSWER_BYTES)

    status, answer = await retried(ask, transport.patience)
    if status != 200:
        raise ImageMissing(f"Google refuses the service account that was given for {host} (status {status})")
    try:
        return Login(_GOOGLE_USER, _GoogleAnswer.model_validate_json(answer).access_token)
    except ValidationError:
        raise ImageUnusable(f"Google gives a token for {host} that can't be read") from None


def _google_assertion(account: Gcp, audience: str) -> str:
    """A JSON Web Token that the account's key has signed (RFC 7515, RFC 7523).

    Its `token_uri` is not used: a key shall not say whom this server talks to.
    """
    try:
        found = _ServiceAccount.model_validate_json(account.service_account_json)
        key = serialization.load_pem_private_key(found.private_key.encode(), password=None)
    except (ValidationError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InvalidRequest("serviceAccountJson is not the JSON key of a Google service account")
    issued = int(datetime.now(UTC).timestamp())
    claims = {
        "iss": found.client_email,
        "scope": _GOOGLE_SCOPE,
        "aud": audience,
        "iat": issued,
        "exp": issued + _TOKEN_SECONDS,
    }
    text = ".".join(
        _base64url(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims)
    )
    signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
