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


@pytest.mark.parametrize(
    "area", ["files", "commands", "pty", "watch", pytest.param("filesystem_pause", marks=pytest.mark.long)]
)
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
