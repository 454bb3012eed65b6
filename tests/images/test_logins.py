"""Who pulls: given credentials, the docker configuration, its helpers."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path

import pytest

from aenv.errors import HostNotReady, ImageMissing
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import UserPassword
from tests.images.builder import image
from tests.images.pulling import LAYERS, pull, until
from tests.images.registries import PASSWORD, USER, Registry


async def test_a_password_is_needed_and_must_be_right(
    secret_registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    name = secret_registry.push("private", image(LAYERS))
    await pull(catalog, blobs, name, UserPassword(USER, PASSWORD))
    with pytest.raises(ImageMissing, match="or only for those who log in"):
        await pull(catalog, blobs, name)
    with pytest.raises(ImageMissing, match="refuses private to the credentials") as refused:
        await pull(catalog, blobs, name, UserPassword(USER, "a-wrong-secret"))
    assert "a-wrong-secret" not in repr(refused.value)


async def test_credentials_do_not_show_themselves() -> None:
    assert PASSWORD not in repr(UserPassword(USER, PASSWORD))


def _write_config(folder: Path, content: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))


def _write_helper(folder: Path, script: str) -> None:
    helper = folder / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("key", ["{host}", "http://{host}", "https://{host}/v1/"])
async def test_logins_of_the_docker_configuration(
    secret_registry: Registry, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, key: str
) -> None:
    name = secret_registry.push("configured", image(LAYERS))
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    _write_config(tmp_path / "docker", {"auths": {key.format(host=secret_registry.host): {"auth": auth}}})
    await pull(catalog, blobs, name)


@pytest.mark.parametrize("everywhere", [False, True])
async def test_credential_helpers(  # noqa: PLR0917 - fixtures
    secret_registry: Registry,
    catalog: ImageCatalog,
    blobs: BlobStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everywhere: bool,
) -> None:
    name = secret_registry.push("helped", image(LAYERS))
    host = secret_registry.host
    _write_config(
        tmp_path / "docker", {"credsStore": "test"} if everywhere else {"credHelpers": {host: "test"}}
    )
    answer = json.dumps({"ServerURL": host, "Username": USER, "Secret": PASSWORD})
    _write_helper(tmp_path, f"""[ "$1" = get ] && [ "$(cat)" = "{host}" ] && echo '{answer}'""")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await pull(catalog, blobs, name)


async def test_a_helper_that_knows_nothing_is_no_failure(
    registry: Registry,
    catalog: ImageCatalog,
    blobs: BlobStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = registry.push("unhelped", image(LAYERS))
    _write_config(tmp_path / "docker", {"credsStore": "test"})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _write_helper(tmp_path, "echo 'credentials not found in native keychain'; exit 1")
    await pull(catalog, blobs, name)
    _write_helper(tmp_path, "echo 'secret words'; exit 1")
    with pytest.raises(HostNotReady, match="docker-credential-test failed with exit status 1") as failed:
        await pull(catalog, blobs, name)
    assert "secret words" not in str(failed.value)
    _write_helper(tmp_path, "echo 'secret words'")
    with pytest.raises(HostNotReady, match="gave an answer that is no login") as failed:
        await pull(catalog, blobs, name)
    assert "secret words" not in str(failed.value)


@pytest.mark.parametrize(
    "content",
    [
        {"auths": {"HOST": {"auth": "secret words"}}},
        {"auths": ["secret words"]},
        {"credHelpers": {"HOST": "../../bin/sh"}},
        {"credHelpers": {"HOST": "does-not-exist"}},
    ],
)
async def test_a_docker_configuration_that_cannot_be_used(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path, content: object
) -> None:
    name = registry.push("misconfigured", image(LAYERS))
    text = json.dumps(content).replace("HOST", registry.host)
    _write_config(tmp_path / "docker", json.loads(text))
    with pytest.raises(HostNotReady) as failed:
        await pull(catalog, blobs, name)
    assert "secret words" not in str(failed.value)


async def test_a_helper_that_hangs_is_ended_with_its_children(
    registry: Registry,
    catalog: ImageCatalog,
    blobs: BlobStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _write_config(tmp_path / "docker", {"credsStore": "test"})
    _write_helper(tmp_path, f"sleep 100 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("aenv.images.docker_config._HELPER_SECONDS", 0.5)
    with pytest.raises(HostNotReady, match="docker-credential-test gave no answer within"):
        await pull(catalog, blobs, registry.name("hangs"))
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    await until(lambda: not child.exists())
