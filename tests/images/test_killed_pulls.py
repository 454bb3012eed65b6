"""Pulls whose process is killed at any moment: what was there is used, and what is there is right."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from tests.images.builder import Document, digest_of, files, image
from tests.images.pulling import pull
from tests.images.scripted import ScriptedServer, for_path
from tests.images.test_processes import puller

MIB = 1 << 20
LAYERS, KILLS = 10, 12
STEP = 64 << 10


def bytes_of(folder: Path, made: Document) -> int:
    """How much of an image is there, whole blobs and parts."""
    names = {digest.partition(":")[2] for digest in made.blobs}
    return sum(path.stat().st_size for path in folder.glob("*/*") if path.name in names)


@pytest.mark.long
async def test_pulls_that_are_killed_again_and_again_come_to_an_end(
    server: ScriptedServer, catalog: ImageCatalog, blobs: BlobStore, tmp_path: Path
) -> None:
    made = image([files({"a": os.urandom(4 * MIB)}) for _ in range(LAYERS)], compression="none")
    sent = [0]  # bytes, for each process

    async def slowly(request: web.Request) -> web.StreamResponse | None:
        """About 4 MiB/s for each connection."""
        process = len(sent) - 1
        data = server.blobs[request.path.rpartition("/")[2]]
        start = request.http_range.start or 0
        response = web.StreamResponse(status=206 if start else 200)
        response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response.content_length = len(data) - start
        await response.prepare(request)
        for at in range(start, len(data), STEP):
            await response.write(data[at : at + STEP])
            sent[process] += min(STEP, len(data) - at)
            await asyncio.sleep(STEP / (4 * MIB))
        return response

    name = server.add(made)
    server.troubles.append(for_path("/blobs/", slowly))
    folder = tmp_path / "blobs"
    kept = 0
    for _ in range(KILLS):
        sent.append(0)
        enough = random.randrange(MIB // 2, 6 * MIB)  # noqa: S311 - not a secret
        process = await puller(name, folder)
        output = asyncio.create_task(process.communicate())
        while sent[-1] < enough and not output.done():
            await asyncio.wait([output], timeout=0.01)
        with suppress(ProcessLookupError):
            process.kill()
        await output
        for path in folder.glob("sha256/*"):
            assert digest_of(path.read_bytes()).endswith(path.name)
        before, kept = kept, bytes_of(folder, made)
        assert kept >= before
    sent.append(0)
    process = await puller(name, folder)
    said, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(said)["digest"] == made.digest
    assert sent[-1] == sum(map(len, made.blobs.values())) - kept
    await pull(catalog, blobs, name)
