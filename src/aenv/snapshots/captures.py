"""Captures and their layers on disk, kept as long as a sandbox, a template or a cached disk names them.

A capture is a folder of new layers plus a record that names every layer, inherited ones included. The
files are written first and the record last, so a record never names a layer that isn't there.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from prometheus_client import Counter
from pydantic import TypeAdapter

from aenv import ids
from aenv.database import Database
from aenv.durable import sync
from aenv.errors import RuntimeFailure, StorageFailure
from aenv.full import write_failure
from aenv.runtimes.base import Capture, Layer

log = structlog.get_logger()

_RECORD = TypeAdapter(Capture)

CAPTURED = Counter(
    "aenv_captured_bytes",
    "Bytes that captures have written, by what they hold.",
    ["content"],
    registry=None,  # one process may hold several servers, each with its own registry
)
"""`content` is how the roles of layers begin: `memory`, `device` or `disk`."""

_UNUSED = """
SELECT id FROM captures WHERE id NOT IN (SELECT capture_id FROM sandboxes WHERE state != 'lost')
AND id NOT IN (SELECT capture_id FROM builds WHERE id IN (SELECT build_id FROM current_tags))
AND id NOT IN (SELECT capture_id FROM cached_disks)
"""


class Captures:
    """The captures under one home folder. Paths in records are relative to it, so it can be moved."""

    def __init__(self, database: Database, home: Path, folder: Path) -> None:
        self._database = database
        self._home = home
        self._folder = folder
        self._kept: list[str] = []
        self.on_removed: Callable[[str], None] = lambda _capture_id: None
        """Called with the id of each capture that is removed, so that what was made from it can go too."""
        self.on_freed: Callable[[Collection[Path]], None] = lambda _layers: None
        """Called with layers that are about to be removed, so that what keeps them open can go too."""

    def new(self) -> tuple[str, Path]:
        """An id for a new capture and its empty folder, to be filled, then recorded or discarded.

        Raises StorageFailure.
        """
        capture_id = ids.new_capture_id()
        folder = self._folder / capture_id
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            what = f"a capture can't be written to {folder}"
            raise write_failure(what, self._folder, error, StorageFailure) from error
        return capture_id, folder

    async def discard(self, capture_id: str) -> None:
        """Remove the folder of a capture that came to nothing."""
        await asyncio.to_thread(shutil.rmtree, self._folder / capture_id, ignore_errors=True)

    def insert(self, connection: sqlite3.Connection, capture_id: str, capture: Capture) -> None:
        """Record a capture, inside a transaction that also makes something refer to it."""
        layers = tuple(
            Layer(layer.role, layer.path.relative_to(self._home), layer.path.stat().st_size)
            for layer in capture.layers
        )
        for layer in layers:
            if layer.path.parent.name == capture_id:  # else it is inherited
                CAPTURED.labels(layer.role.split("-")[0]).inc(layer.size or 0)
        record = Capture(capture.identity, capture.resources, layers, capture.memory)
        connection.execute(
            "INSERT INTO captures (id, record) VALUES (?, ?)",
            (capture_id, _RECORD.dump_json(record).decode()),
        )
        connection.executemany(
            "INSERT OR IGNORE INTO capture_layers (capture_id, path) VALUES (?, ?)",
            [(capture_id, str(layer.path)) for layer in layers],
        )

    @staticmethod
    def read(connection: sqlite3.Connection, home: Path, capture_id: str) -> Capture:
        """A recorded capture, with absolute paths; its files aren't looked at. Raises RuntimeFailure."""
        row = connection.execute("SELECT record FROM captures WHERE id = ?", (capture_id,)).fetchone()
        if row is None:
            raise RuntimeFailure(f"capture {capture_id} is not recorded")
        record = _RECORD.validate_json(row[0])
        layers = tuple(Layer(layer.role, home / layer.path, layer.size) for layer in record.layers)
        return Capture(record.identity, record.resources, layers, record.memory)

    async def get(self, capture_id: str) -> Capture:
        """A recorded capture, with absolute paths. Raises RuntimeFailure if a layer is missing or cut short.

        Not every reader would notice: a disk overlay that was cut short reads as zeros where it ended.
        """
        capture = await self._database.run(lambda c: self.read(c, self._home, capture_id))
        for layer in capture.layers:
            what = f"layer {layer.path.name} ({layer.role}) of {capture_id}"
            try:
                size = layer.path.stat().st_size
            except OSError as error:
                raise RuntimeFailure(f"{what} is missing") from error
            if layer.size is not None and size < layer.size:
                raise RuntimeFailure(f"{what} is damaged: it has {size} bytes instead of {layer.size}")
        return capture

    def has_memory(self, connection: sqlite3.Connection, capture_id: str) -> bool:
        """Whether a recorded capture can be restored; else it can only be booted from."""
        query = "SELECT json_extract(record, '$.memory') FROM captures WHERE id = ?"
        row = connection.execute(query, (capture_id,)).fetchone()
        return row is None or row[0] != 0

    @contextmanager
    def kept(self, capture_id: str) -> Iterator[None]:
        """Keep a capture during the block, even if nothing refers to it any more."""
        self._kept.append(capture_id)
        try:
            yield
        finally:
            self._kept.remove(capture_id)

    def taken(self, capture: Capture) -> int:
        """Bytes that the layers in this folder take on the disk, those of other captures too. Blocking.

        Raises OSError.
        """
        layers = [layer.path for layer in capture.layers if layer.path.is_relative_to(self._folder)]
        return sum(path.stat().st_blocks * 512 for path in layers)

    async def sync(self, capture: Capture) -> None:
        """Make the capture's own layers, their names and the records so far survive a power cut."""
        layers = [layer.path for layer in capture.layers if layer.path.is_relative_to(self._folder)]
        folders = {path.parent for path in layers}

        def flush() -> None:
            for path in (*layers, *folders, self._folder):
                sync(path)

        await asyncio.to_thread(flush)
        await self._database.flush()

    async def collect(self) -> None:
        """Remove captures that nothing refers to, and the layers that no other capture names."""

        def transaction(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
            unused = [row[0] for row in connection.execute(_UNUSED) if row[0] not in self._kept]
            candidates: set[str] = set()
            for capture_id in unused:
                rows = connection.execute(
                    "SELECT path FROM capture_layers WHERE capture_id = ?", (capture_id,)
                )
                candidates.update(row[0] for row in rows)
                connection.execute("DELETE FROM captures WHERE id = ?", (capture_id,))
            named = "SELECT 1 FROM capture_layers WHERE path = ?"
            free = [path for path in candidates if connection.execute(named, (path,)).fetchone() is None]
            return unused, free

        removed, paths = await self._database.run(transaction)
        for capture_id in removed:
            self.on_removed(capture_id)
        if paths:
            # Else a power cut could bring back the records of layers that are gone.
            await self._database.flush()
            layers = [self._home / path for path in paths]
            self.on_freed(layers)
            await asyncio.to_thread(self._remove, layers)

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            if not path.is_relative_to(self._folder):
                continue  # a root file system image: it belongs to the images folder
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)  # nothing of ours, so no record names it
            else:
                path.unlink(missing_ok=True)
            try:
                path.parent.rmdir()
            except OSError:
                continue  # other layers in the folder are still needed

    async def sweep(self) -> None:
        """At start, before anything captures: remove every file that no record names."""
        await self.collect()
        rows = await self._database.run(
            lambda c: c.execute("SELECT DISTINCT path FROM capture_layers").fetchall()
        )
        known = {self._home / row[0] for row in rows}

        def walk() -> None:
            for folder in filter(Path.is_dir, self._folder.iterdir()):
                unknown = [path for path in folder.iterdir() if path not in known]
                self._remove(unknown)
                if not unknown and not any(folder.iterdir()):
                    folder.rmdir()

        await asyncio.to_thread(walk)
