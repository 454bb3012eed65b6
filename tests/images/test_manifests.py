"""Manifests and configurations that aren't what they should be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aenv.errors import ImageUnusable
from aenv.images import manifests
from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.manifests import Platform, host_platform, parse, parse_configuration
from tests.images.builder import OCI_INDEX, Document, files, image
from tests.images.pulling import pull
from tests.images.scripted import ScriptedServer

ARCHIVES = [files({"a": b"1"})]
GOOD = json.loads(image(ARCHIVES).data)
EMPTY = "application/vnd.oci.empty.v1+json"
LAYER = "application/vnd.oci.image.layer."
ARM = Platform("linux", "arm64")


def changed(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def with_layer(**changes: Any) -> bytes:
    return changed(layers=[{**GOOD["layers"][0], **changes}])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b"{}", "not a container image"),
        (b'{"schemaVersion": 1, "fsLayers": []}', "manifest of schema 1"),
        (
            b'{"mediaType": "application/vnd.docker.distribution.manifest.v1+prettyjws"}',
            "manifest of schema 1, which Docker has given up",
        ),
        (changed(manifests=[]), "not a container image"),
        (changed(config=None), "config"),
        (changed(layers={}), "layers"),
        (changed(layers=[GOOD["layers"][0]] * 1001), "layers"),
        (changed(config={**GOOD["config"], "mediaType": EMPTY}), "its config is application/vnd.oci.empty"),
        (changed(config={**GOOD["config"], "digest": "sha256:../../../etc/passwd"}), "config.digest"),
        (changed(config={**GOOD["config"], "digest": GOOD["config"]["digest"] + "\n"}), "config.digest"),
        (changed(config={**GOOD["config"], "size": -1}), "config.size"),
        (changed(config={**GOOD["config"], "size": "many"}), "config.size"),
        (with_layer(mediaType="application/vnd.cncf.helm.chart.content.v1"), "is application/vnd.cncf.helm"),
        (with_layer(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), "foreign layer"),
        (with_layer(urls=["https://evil.example/layer"]), "foreign layer"),
        (with_layer(mediaType=f"{LAYER}nondistributable.v1.tar+gzip"), "foreign layer"),
        (with_layer(mediaType=f"{LAYER}v1.tar+gzip+encrypted"), "encrypted layer"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ImageUnusable, match=why) as refused:
        parse(data, "", "app:1")
    assert refused.value.message.startswith("app:1 ")


KEYS = st.sampled_from(["manifests", "digest", "size", "rootfs", "diff_ids", *GOOD])
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda it: st.lists(it) | st.dictionaries(KEYS, it)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
def test_any_json_is_a_manifest_or_refused(value: object) -> None:
    data = json.dumps(value).encode()
    for read in (lambda: parse(data, "", "app"), lambda: parse_configuration(data, "app")):
        try:
            found = read()
        except ImageUnusable:
            continue
        assert isinstance(found, manifests.Index | manifests.Manifest | manifests.Configuration)


def test_json_that_is_nested_without_end() -> None:
    with pytest.raises(ImageUnusable):
        parse(b'{"layers":' * 100_000, "", "app")


def test_a_configuration_with_wrong_diff_ids() -> None:
    with pytest.raises(ImageUnusable, match="diff_ids are no digests"):
        parse_configuration(b'{"rootfs": {"diff_ids": ["../x"]}}', "app")


def test_commands_and_variables_in_all_their_forms() -> None:
    run = {"Cmd": "a string", "Env": ["A=1", "NOTHING", "=x", "B="], "Labels": {"a": None}}
    found = parse_configuration(json.dumps({"config": run}).encode(), "app").image_config
    assert found.cmd == ("a string",)
    assert found.env == {"A": "1", "B": ""}
    assert found.labels == {"a": ""}


def test_the_platform_of_this_machine() -> None:
    assert host_platform().os == "linux"
    assert host_platform().architecture in {"amd64", "arm64"}


@pytest.mark.parametrize(
    ("variants", "chosen"), [(["v7", "v8"], "v8"), (["", "v8"], "v8"), ([""], ""), (["v9"], None)]
)
def test_variants_of_arm(variants: list[str], chosen: str | None) -> None:
    descriptors = [
        {**GOOD["config"], "platform": {"os": "linux", "architecture": "arm64", "variant": variant}}
        for variant in variants
    ]
    found = parse(json.dumps({"mediaType": OCI_INDEX, "manifests": descriptors}).encode(), "", "app")
    assert isinstance(found, manifests.Index)
    if chosen is None:
        with pytest.raises(ImageUnusable, match="is for linux/arm64/v9; this machine runs linux/arm64"):
            manifests.choose(found, ARM, "app")
        return
    platform = manifests.choose(found, ARM, "app").platform
    assert platform is not None
    assert platform.variant == chosen


def test_an_index_without_platforms() -> None:
    found = parse(json.dumps({"manifests": [GOOD["config"]]}).encode(), OCI_INDEX, "app")
    assert isinstance(found, manifests.Index)
    assert manifests.choose(found, ARM, "app").digest == GOOD["config"]["digest"]


def test_an_empty_index() -> None:
    found = parse(b'{"manifests": []}', OCI_INDEX, "app")
    assert isinstance(found, manifests.Index)
    with pytest.raises(ImageUnusable, match="app is for nothing"):
        manifests.choose(found, ARM, "app")


@pytest.mark.parametrize("ids", [["sha256:" + "0" * 64] * 2, []])
async def test_layers_and_diff_ids_must_agree(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, ids: list[str]
) -> None:
    with pytest.raises(ImageUnusable, match=f"is damaged: 1 layers, {len(ids)} diff_ids"):
        await pull(catalog, blobs, server.add(image(ARCHIVES, diff_ids=ids)))


async def test_a_manifest_that_is_too_large(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    huge = Document(b" " * ((4 << 20) + 1), "application/vnd.oci.image.manifest.v1+json", {})
    with pytest.raises(ImageUnusable, match="sends more than 4194304 bytes"):
        await pull(catalog, blobs, server.add(huge))


async def test_a_configuration_that_is_too_large(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore
) -> None:
    huge = image(ARCHIVES, manifest_changes={"config": {**GOOD["config"], "size": 1 << 40}})
    with pytest.raises(ImageUnusable, match="no more than 4194304 are allowed"):
        await pull(catalog, blobs, server.add(huge))
