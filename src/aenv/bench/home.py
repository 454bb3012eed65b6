"""What only its own host can see of a server: records and VMM processes, found in its home folder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from aenv.errors import RuntimeFailure
from aenv.runtimes.base import Capture
from aenv.sandboxes import store
from aenv.sandboxes.models import Sandbox
from aenv.settings import Settings
from aenv.snapshots.captures import Captures
from aenv.templates import store as templates_store


class Home:
    """The home folder of a server that runs. Its methods block, shortly. They raise RuntimeFailure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = Settings(home=folder)

    @contextmanager
    def _records(self) -> Iterator[sqlite3.Connection]:
        address = f"{self._settings.database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            yield connection

    def template_capture(self) -> Capture:
        """What sandboxes of the template `base` start from."""
        with self._records() as connection:
            build = templates_store.resolve(connection, "base").build
            return Captures.read(connection, self.folder, build.capture_id)

    def capture_of(self, sandbox_id: str) -> Capture:
        """The last capture of a sandbox, or what it started from."""
        with self._records() as connection:
            return Captures.read(connection, self.folder, _sandbox(connection, sandbox_id).capture_id)

    def delta_mib(self, sandbox_id: str) -> float:
        """How much the memory in that capture differs from its base."""
        layers = self.capture_of(sandbox_id).layers
        return sum(layer.path.stat().st_size for layer in layers if layer.role == "memory-delta") / (1 << 20)

    def vmm_of(self, sandbox_id: str) -> int:
        """The process id of a sandbox's VMM."""
        with self._records() as connection:
            instance_id = _sandbox(connection, sandbox_id).instance_id
        if instance_id is None:
            raise RuntimeFailure(f"sandbox {sandbox_id} has no VMM")
        record = json.loads((self._settings.workspace_dir / instance_id / "vmm.json").read_text())
        return int(record["pid"])

    def vmms(self) -> int:
        """How many VMM processes there are, spare ones included."""
        return sum(1 for _ in self._settings.workspace_dir.glob("*/vmm.json"))

    def captures_mib(self) -> float:
        """What all captures occupy on the disk."""
        files = self._settings.captures_dir.glob("*/*")
        return sum(file.stat().st_blocks for file in files) * 512 / (1 << 20)


def _sandbox(connection: sqlite3.Connection, sandbox_id: str) -> Sandbox:
    sandbox = store.get(connection, sandbox_id)
    if sandbox is None:
        raise RuntimeFailure(f"sandbox {sandbox_id} is not recorded")
    return sandbox


def private_mib(pid: int) -> float:
    """Memory that is a process's own, not shared with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
