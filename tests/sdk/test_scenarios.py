"""The unmodified SDKs, each running the same program of a user."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ROOT, STATE, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]

SDKS = STATE / "sdks"


def _run(command: list[str | Path], server: Server) -> None:
    finished = subprocess.run(
        command, env=server.environment, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize(
    "python", [Path(sys.executable), SDKS / "python-2.45.1" / "bin" / "python"], ids=["2.63.0", "2.45.1"]
)
def test_python(python: Path, server: Server) -> None:
    _run([python, "-W", "error::UserWarning", ROOT / "tests" / "sdk" / "scenario.py"], server)


def test_javascript(server: Server) -> None:
    # node finds packages from where a script is, so the script goes to them.
    script = shutil.copy(ROOT / "tests" / "sdk" / "js" / "scenario.mjs", SDKS / "js" / "scenario.mjs")
    _run([Path(sys.executable).parent / "node", script], server)
