"""The JavaScript SDK, one script per area."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ROOT, STATE, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(150)]

SCRIPTS = ROOT / "tests" / "sdk" / "js"
SDK = STATE / "sdks" / "js"


QUICK = ["files", "commands", "pty", "watch", "secure"]
LONG = ["filesystem_pause", "git", "metrics", "timeouts"]


@pytest.mark.parametrize("area", [*QUICK, *(pytest.param(area, marks=pytest.mark.long) for area in LONG)])
def test_javascript(area: str, server: Server) -> None:
    # node finds packages from where a script is, so the scripts go to them.
    for name in (area, "support"):
        shutil.copy(SCRIPTS / f"{name}.mjs", SDK)
    node = Path(sys.executable).parent / "node"
    finished = subprocess.run(
        [node, SDK / f"{area}.mjs"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
