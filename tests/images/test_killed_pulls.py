"""Pulls whose process is killed at any moment: what was there is used, and what is there is right."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest
from aiohttp import web

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from tests.images.builder import digest_of, files, image
from tests.images.pulling import pull
from tests.images.scripted import ScriptedServer, for_path
from tests.images.test_processes import puller

MIB = 1 << 20
LAYERS, CONNECTIONS = 6, 4
STEP = 64 << 10


@pytest.mark.long
async def test_pulls_that_are_killed_again_and_again_come_to_an_end(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    made = image([files({"a": os.urandom(4 * MIB)}) for _ in range(LAYERS)], compression="none")
    sent = 0

    async def slowly(request: web.Request) -> web.StreamResponse | None:
        """About 4 MiB/s for each connection."""
        nonlocal sent
        data = server.blobs[request.path.rpartition("/")[2]]
        start = request.http_range.start or 0
        response = web.StreamResponse(status=206 if start else 200)
        response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response.content_length = len(data) - start
        await response.prepare(request)
        for at in range(start, len(data), STEP):
            await response.write(data[at : at + STEP])
            sent += min(STEP, len(data) - at)
            await asyncio.sleep(STEP / (4 * MIB))
        return response

    name = server.add(made)
    server.troubles.append(for_path("/blobs/", slowly))
    folder = tmp_path / "blobs"
    kills = 0
    while True:
        process = await puller(name, folder)
        output = asyncio.create_task(process.communicate())
        await asyncio.wait([output], timeout=random.uniform(0.3, 1.5))  # noqa: S311 - not a secret
        if output.done():
            break
        process.kill()
        await output
        kills += 1
        for path in [*folder.glob("sha256/*"), *folder.glob("sha512/*")]:
            assert digest_of(path.read_bytes()).endswith(path.name)
        assert kills < 100
    said, errors = output.result()
    assert process.returncode == 0, errors
    assert json.loads(said)["digest"] == made.digest
    assert kills > 0
    # What was under way is lost, as far as it had not been written yet.
    assert sent < sum(map(len, made.blobs.values())) + kills * CONNECTIONS * 3 * MIB
    await pull(catalog, blobs, name)
