"""Registries that the tests of a run share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.manifests import Platform
from aenv.images.retries import Patience
from tests.images.registries import Registry, running_registry
from tests.images.scripted import ScriptedServer, scripted_server

QUICK = Patience(attempts=3, first=0.01, longest=1.0)
"""So that tests of failures end."""

AMD64 = Platform("linux", "amd64")
"""What the images of the tests are for, whatever runs the tests."""


@pytest.fixture(autouse=True)
def kept_umask() -> Iterator[None]:
    """What fills a disk in a process of its own changes the umask; here it is called in the tests' own."""
    mask = os.umask(0)
    os.umask(mask)
    yield
    os.umask(mask)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry for everybody."""
    with running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(scope="session")
def secret_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants a password."""
    with running_registry(tmp_path_factory.mktemp("registry"), secret=True) as started:
        yield started


@pytest.fixture
async def blobs(tmp_path: Path) -> BlobStore:
    """An empty store."""
    store = BlobStore(tmp_path / "blobs", max_bytes=1 << 30, patience=QUICK)
    await store.open()
    return store


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[ImageCatalog]:
    """Finds images for machines with amd64; there is no docker configuration."""
    config = tmp_path / "docker" / "config.json"
    async with ImageCatalog(docker_config=config, platform=AMD64, patience=QUICK, idle_seconds=5) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A registry that misbehaves as the test says."""
    async with scripted_server() as started:
        yield started


@pytest.fixture
async def other_server() -> AsyncIterator[ScriptedServer]:
    """Another host: a token server, or a store of blobs."""
    async with scripted_server() as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder, for the root of a file system."""
    path = tmp_path / "root"
    path.mkdir(mode=0o755)
    return path
