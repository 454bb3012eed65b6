"""Pulls from a real registry."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from aiohttp import web

from aenv.errors import ImageMissing, ImageUnusable, InvalidRequest, RegistryUnavailable
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.models import Compression, UserPassword
from aenv.images.partial import WrongContent
from aenv.images.sources import NoProgress
from tests.images.builder import (
    Document,
    attestation,
    digest_of,
    files,
    image,
    index,
)
from tests.images.conftest import AMD64, QUICK
from tests.images.pulling import LAYERS, Heard, pull
from tests.images.registries import PASSWORD, USER, Registry, free_port
from tests.images.scripted import ScriptedServer


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
async def test_an_image_is_pulled_as_it_was_pushed(
    registry: Registry,
    catalog: ImageCatalog,
    blobs: BlobStore,
    docker: bool,
    compression: Compression,
) -> None:
    config = {
        "Env": ["PATH=/bin", "EMPTY=", "EQUALS=a=b"],
        "User": "app:100",
        "WorkingDir": "/srv",
        "Entrypoint": ["/init"],
        "Cmd": ["serve", "--all"],
        "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
        "Volumes": {"/data": {}},
        "Labels": {"a.b": "c"},
        "StopSignal": "SIGINT",
    }
    made = image(LAYERS, compression=compression, config=config, docker=docker)
    name = registry.push(f"whole/{compression}-{docker}".lower(), made)
    async with catalog.named(name).open(blobs, NoProgress()) as opened:
        fetched = await opened.fetch()
        for layer, digest, data in zip(fetched.layers, made.layers, LAYERS, strict=True):
            assert layer.digest == digest == digest_of(layer.path.read_bytes())
            assert layer.diff_id == digest_of(data)
            assert layer.compression == compression
            assert layer.size == layer.path.stat().st_size
    assert fetched.digest == made.digest
    assert fetched.reference == f"{name}@{made.digest}"
    assert fetched.platform == "linux/amd64"
    assert fetched.config.env == {"PATH": "/bin", "EMPTY": "", "EQUALS": "a=b"}
    assert (fetched.config.user, fetched.config.working_dir) == ("app:100", "/srv")
    assert (fetched.config.entrypoint, fetched.config.cmd) == (("/init",), ("serve", "--all"))
    assert fetched.config.exposed_ports == ("80/tcp", "53/udp")
    assert (fetched.config.volumes, fetched.config.labels) == (("/data",), {"a.b": "c"})
    assert fetched.config.stop_signal == "SIGINT"


async def test_configuration_and_diff_ids_are_known_before_any_layer(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made = image(LAYERS)
    async with catalog.named(registry.push("lazy", made)).open(blobs, NoProgress()) as opened:
        assert opened.diff_ids == tuple(map(digest_of, LAYERS))
        assert not any(blobs.path(digest).exists() for digest in made.layers)
        upper = await opened.layer(1)
        assert upper.path.exists()
        assert not blobs.path(made.layers[0]).exists()


async def test_fields_that_are_null_or_missing_are_empty(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    nothing = dict.fromkeys(("Env", "Cmd", "Entrypoint", "Labels", "Volumes", "ExposedPorts", "User"))
    fetched = await pull(catalog, blobs, registry.push("nulls", image(LAYERS, config=nothing)))
    assert fetched.config.env == {}
    assert fetched.config.cmd == fetched.config.entrypoint == fetched.config.exposed_ports == ()
    assert fetched.config.user == fetched.config.working_dir == ""


async def test_an_image_without_layers(registry: Registry, catalog: ImageCatalog, blobs: BlobStore) -> None:
    assert (await pull(catalog, blobs, registry.push("empty", image([])))).layers == ()


async def test_the_same_layer_twice(registry: Registry, catalog: ImageCatalog, blobs: BlobStore) -> None:
    fetched = await pull(catalog, blobs, registry.push("twice", image([LAYERS[0], LAYERS[0]])))
    assert fetched.layers[0] == fetched.layers[1]


async def test_progress_is_told_layer_by_layer(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made = image(LAYERS)
    name = registry.push("progress", made)
    first, second = Heard(), Heard()
    await pull(catalog, blobs, name, progress=first)
    await pull(catalog, blobs, name, progress=second)
    for digest in made.layers:
        told = [(done, total) for each, done, total in first.said if each == digest]
        size = len(made.blobs[digest])
        assert told == sorted(told)
        assert told[0] == (0, size)
        assert told[-1] == (size, size)
        assert [(done, total) for each, done, total in second.said if each == digest] == [(size, size)]


def _for(architecture: str, variant: str | None = None) -> Document:
    return image(
        [files({"for": f"{architecture} {variant}".encode()})], architecture=architecture, variant=variant
    )


@pytest.mark.parametrize("docker", [False, True])
async def test_the_manifest_for_this_machine_is_taken_from_an_index(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore, docker: bool
) -> None:
    ours = _for("amd64")
    kinds = [_for("arm", "v7"), _for("arm64", "v8"), _for("amd64", "v3"), _for("amd64", "v2"), ours]
    name = registry.push("many", index([attestation(ours), *kinds], docker=docker))
    assert (await pull(catalog, blobs, name)).digest == ours.digest


async def test_a_variant_that_this_machine_runs_is_better_than_none(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    name = registry.push("variant", index([_for("amd64", "v3"), _for("amd64", "v2")]))
    assert (await pull(catalog, blobs, name)).digest == _for("amd64", "v2").digest


async def test_an_index_without_this_machine_says_what_it_is_for(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    name = registry.push("others", index([_for("arm", "v7"), _for("arm64", "v8"), _for("amd64", "v4")]))
    with pytest.raises(ImageUnusable, match="is for linux/amd64/v4, linux/arm/v7, linux/arm64/v8; this mach"):
        await pull(catalog, blobs, name)


async def test_an_image_for_another_machine_is_refused(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    with pytest.raises(ImageUnusable, match="is for linux/s390x; this machine runs linux/amd64"):
        await pull(catalog, blobs, registry.push("other", _for("s390x")))


async def test_an_index_in_an_index(registry: Registry, catalog: ImageCatalog, blobs: BlobStore) -> None:
    ours = _for("amd64")
    nested = index([index([index([ours])])])
    assert (await pull(catalog, blobs, registry.push("nested", nested))).digest == ours.digest
    for _ in range(3):
        nested = index([nested])
    with pytest.raises(ImageUnusable, match="indexes within indexes"):
        await pull(catalog, blobs, registry.push("deep", nested))


async def test_a_digest_names_an_image_whatever_its_tag(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    older, newer = image(LAYERS[:1]), image(LAYERS)
    registry.push("moved", older)
    registry.push("moved", newer)
    assert (await pull(catalog, blobs, registry.name("moved"))).digest == newer.digest
    assert (await pull(catalog, blobs, registry.name("moved", older.digest))).digest == older.digest
    both = f"{registry.host}/moved:latest@{older.digest}"
    assert (await pull(catalog, blobs, both)).digest == older.digest


async def test_an_image_with_a_digest_that_is_here_needs_no_registry(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made = image(LAYERS)
    registry.push("pinned", made)
    await pull(catalog, blobs, registry.name("pinned", made.digest))
    gone = f"127.0.0.1:{free_port()}/pinned@{made.digest}"
    assert (await pull(catalog, blobs, gone)).digest == made.digest


async def test_a_tag_that_names_the_same_still_is_not_got_again(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    older, newer = image(LAYERS[:1]), image(LAYERS)

    async def digest(request: web.Request) -> web.StreamResponse | None:
        if request.method != "HEAD" or not request.path.endswith("/latest"):
            return None
        return web.Response(headers={"Docker-Content-Digest": server.documents["latest"].digest})

    server.troubles.append(digest)
    name = server.add(older)
    for _ in range(2):
        assert (await pull(catalog, blobs, name)).digest == older.digest
    assert [each.path for each in server.asked("/manifests/")] == [f"/v2/org/app/manifests/{older.digest}"]
    server.add(newer)
    assert (await pull(catalog, blobs, name)).digest == newer.digest


async def test_short_names_are_looked_for_in_order(
    registry: Registry, secret_registry: Registry, blobs: BlobStore, tmp_path: Path
) -> None:
    both, second = image(LAYERS), image(LAYERS[:1])
    secret_registry.push("both", both)
    registry.push("both", second)
    registry.push("second", second)
    config = tmp_path / "config.json"
    async with ImageCatalog(
        registries=(secret_registry.host, registry.host),
        docker_config=config,
        platform=AMD64,
        patience=QUICK,
    ) as catalog:
        assert (await pull(catalog, blobs, "both")).digest == second.digest
        login = {"username": USER, "password": PASSWORD}
        config.write_text(json.dumps({"auths": {secret_registry.host: login}}))
        assert (await pull(catalog, blobs, "both")).digest == both.digest
        assert (await pull(catalog, blobs, "second")).digest == second.digest
        with pytest.raises(ImageMissing, match=rf"{registry.host} has no latest of third"):
            await pull(catalog, blobs, "third")


async def test_credentials_are_for_one_registry(blobs: BlobStore) -> None:
    async with ImageCatalog(registries=("quay.io", "docker.io")) as catalog:
        with pytest.raises(InvalidRequest, match=r"as in quay\.io/app:latest: credentials are for one"):
            await pull(catalog, blobs, "app", UserPassword(USER, PASSWORD))


async def test_a_registry_that_is_away_is_not_passed_over(
    registry: Registry, blobs: BlobStore, tmp_path: Path
) -> None:
    registry.push("fallback", image(LAYERS))
    async with ImageCatalog(
        registries=(f"127.0.0.1:{free_port()}", registry.host),
        docker_config=tmp_path / "none",
        platform=AMD64,
        patience=QUICK,
    ) as catalog:
        with pytest.raises(RegistryUnavailable, match="can't be reached"):
            await pull(catalog, blobs, "fallback")


async def test_what_is_not_there_is_missing(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    registry.push("there", image(LAYERS))
    with pytest.raises(ImageMissing, match=r"has no other of there.*manifest unknown"):
        await pull(catalog, blobs, registry.name("there", "other"))
    with pytest.raises(ImageMissing, match="has no latest of nowhere"):
        await pull(catalog, blobs, registry.name("nowhere"))


async def test_a_host_that_does_not_exist(catalog: ImageCatalog, blobs: BlobStore) -> None:
    with pytest.raises(RegistryUnavailable, match=r"there is no host no-such-host\.invalid"):
        await pull(catalog, blobs, "no-such-host.invalid/app")


@pytest.mark.parametrize("insecure", [[], ["{host}"], ["{host}:{port}"]])
async def test_other_hosts_are_asked_without_tls_only_if_they_are_named(
    registry: Registry, blobs: BlobStore, tmp_path: Path, insecure: list[str]
) -> None:
    made = image(LAYERS)
    registry.push("plain", made)
    host = "0.0.0.0"  # noqa: S104 - this machine, by a name that doesn't say so
    port = registry.host.partition(":")[2]
    async with ImageCatalog(
        insecure=[each.format(host=host, port=port) for each in insecure],
        docker_config=tmp_path / "none",
        platform=AMD64,
        patience=QUICK,
    ) as catalog:
        name = f"{host}:{port}/plain"
        if insecure:
            assert (await pull(catalog, blobs, name)).digest == made.digest
        else:
            with pytest.raises(RegistryUnavailable):
                await pull(catalog, blobs, name)


async def test_a_layer_that_was_changed_on_the_registry_is_refused(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made = image([files({"a": os.urandom(1000)})])
    name = registry.push("changed", made)
    data = made.blobs[made.layers[0]]
    registry.damage(made.layers[0], data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(WrongContent, match="is damaged where it comes from"):
        await pull(catalog, blobs, name)
    assert not blobs.path(made.layers[0]).exists()
    registry.damage(made.layers[0], data)
    await pull(catalog, blobs, name)


async def test_pulls_at_once_share_their_downloads(
    registry: Registry, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    made = image([files({"a": os.urandom(8 << 20)})])
    name = registry.push("shared", made)
    heard = [Heard() for _ in range(8)]
    fetched = await asyncio.gather(*(pull(catalog, blobs, name, progress=each) for each in heard))
    assert len({each.digest for each in fetched}) == 1
    size = len(made.blobs[made.layers[0]])
    assert all(each.said[-1] == (made.layers[0], size, size) for each in heard)
