"""Prints the public methods of the E2B SDK for Python that runs this, by the object that has them."""

from __future__ import annotations

import json
import sys

from e2b import Sandbox, Template
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b.sandbox_sync.git import Git

GROUPS = {
    "sandbox": Sandbox,
    "sandbox.commands": Commands,
    "sandbox.pty": Pty,
    "sandbox.files": Filesystem,
    "sandbox.git": Git,
    "Template": Template,
}

if __name__ == "__main__":
    found = {
        group: [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
        for group, kind in GROUPS.items()
    }
    sys.stdout.write(json.dumps(found))
