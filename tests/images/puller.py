"""Pulls an image in a process of its own: `puller.py NAME FOLDER`. Prints what it has got."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from aenv.images.blobs import BlobStore
from aenv.images.catalog import ImageCatalog
from aenv.images.manifests import Platform
from aenv.images.retries import Patience
from aenv.images.sources import NoProgress


def peak() -> int:
    """The most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main(name: str, folder: Path) -> None:
    """Pull and report."""
    before = peak()
    store = BlobStore(folder, max_bytes=1 << 40)
    await store.open()
    async with (
        ImageCatalog(
            docker_config=folder / "none", platform=Platform("linux", "amd64"), patience=Patience(attempts=2)
        ) as catalog,
        catalog.named(name).open(store, NoProgress()) as opened,
    ):
        fetched = await opened.fetch()
    sys.stdout.write(json.dumps({"digest": fetched.digest, "kib": peak() - before}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
