"""The unmodified SDKs, each running a user's program on lists, tags and snapshots."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.server import STATE
from tests.unit.api.support import Server, run_program

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__).parent
SDKS = STATE / "sdks"


@pytest.mark.parametrize(
    "python", [Path(sys.executable), SDKS / "python-2.45.1" / "bin" / "python"], ids=["2.63.0", "2.45.1"]
)
async def test_python(server: Server, python: Path) -> None:
    await run_program(server, python, HERE / "control_plane.py")


async def test_javascript(server: Server) -> None:
    # node finds packages from where a script is, so the script goes to them.
    script = shutil.copy(HERE / "control_plane.mjs", SDKS / "js" / "control_plane.mjs")
    await run_program(server, Path(sys.executable).parent / "node", script)
