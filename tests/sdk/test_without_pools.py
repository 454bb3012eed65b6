"""A user's program finds the same on a server that keeps no spare machines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.server import ROOT, home, running_server

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(400)]


def test_a_scenario_without_pools() -> None:
    off = {"hot_vms": 0, "bare_vms": 0, "stopped_vms": 0}
    with running_server(home("without-pools"), **off) as server:
        assert not server.vmms()
        program = [sys.executable, str(ROOT / "tests" / "sdk" / "scenario.py")]
        environment = server.environment
        finished = subprocess.run(
            program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert not server.vmms()
