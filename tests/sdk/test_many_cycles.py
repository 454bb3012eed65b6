"""Hundreds of pauses of one sandbox: all that runs in it goes on, nothing piles up, nothing gets slower."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox

from tests.sdk.survivor import BLOCK
from tests.server import Server, home, running_server

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(2400)]

CYCLES = int(os.environ.get("AENV_TEST_CYCLES", "300"))
EDGE = 20
"""Cycles at the begin and at the end that are compared."""

SLOWER = 2.0
SLACK = 0.3  # seconds
"""How much slower the last cycles may be before it is no noise: the machine may have become busy."""

PORT = 7000
PROGRAM = Path(__file__).with_name("survivor.py")


@dataclass
class Times:
    """Seconds that each cycle took, step by step."""

    pause: list[float] = field(default_factory=list)
    resume: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)

    def compare(self) -> dict[str, tuple[float, float]]:
        """Medians of the first and of the last cycles."""
        return {
            step: (statistics.median(values[:EDGE]), statistics.median(values[-EDGE:]))
            for step, values in vars(self).items()
        }


def _bytes(server: Server) -> int:
    """What captures and live VMs take on the disk; hard links count once."""
    taken = {}
    for folder in ("captures", "workspace"):
        for parent, _, names in os.walk(server.home / folder):
            for name in names:
                try:
                    found = (Path(parent) / name).stat()
                except FileNotFoundError:
                    continue
                taken[found.st_ino] = found.st_blocks * 512
    return sum(taken.values())


def _layers(server: Server, sandbox_id: str) -> int:
    with closing(sqlite3.connect(server.home / "aenv.db")) as connection:
        query = "SELECT count(*) FROM capture_layers JOIN sandboxes USING (capture_id) WHERE id = ?"
        return int(connection.execute(query, (sandbox_id,)).fetchone()[0])


@pytest.mark.parametrize("stopped_vms", [4, 0])
def test_hundreds_of_pauses(stopped_vms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = CYCLES if stopped_vms else max(2 * EDGE, CYCLES // 5)
    with running_server(home("cycles"), stopped_vms=stopped_vms) as server:
        for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"):
            monkeypatch.setenv(name, server.environment[name])
        before = _bytes(server)
        sandbox = Sandbox.create("base", timeout=3600)
        sandbox.files.write("survivor.py", PROGRAM.read_bytes())
        sandbox.commands.run(f"python3 survivor.py {PORT} /home/user/grown", background=True, timeout=0)

        def ask(path: str, seconds: float = 60) -> Any:
            headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(PORT)}
            answer = httpx.get(f"{server.url}{path}", headers=headers, timeout=seconds)
            assert answer.status_code == 200, answer.text
            return answer.json()

        _eventually(lambda: ask("/") is not None)
        first = last = ask("/")
        times, most_layers = Times(), 0
        for number in range(count):
            started = time.monotonic()
            sandbox.pause()
            paused = time.monotonic()
            Sandbox.connect(sandbox.sandbox_id, timeout=3600)
            resumed = time.monotonic()
            state = ask(f"/step?n={number}")
            times.pause.append(paused - started)
            times.resume.append(resumed - paused)
            times.answer.append(time.monotonic() - resumed)
            assert (state["pid"], state["blocks"], state["problems"]) == (first["pid"], number + 1, [])
            assert state["exchanged"] >= last["exchanged"]
            last = state
            most_layers = max(most_layers, _layers(server, sandbox.sandbox_id))
        assert last["exchanged"] > first["exchanged"]
        assert ask("/verify", 600)["problems"] == []
        taken, grown = _bytes(server) - before, count * BLOCK
        compared = times.compare()
        figures = {"taken": taken, "grown": grown, "layers": most_layers, **compared}
        (server.home / "cycles.json").write_text(json.dumps(figures))
        assert most_layers <= 80, "overlays pile up"
        memory = 512 << 20
        assert taken <= memory + 4 * grown + (128 << 20), figures
        for step, (begin, end) in compared.items():
            assert end <= SLOWER * begin + SLACK, f"{step} became slower: {begin:.3f} s, then {end:.3f} s"
        sandbox.kill()


def _eventually(condition: Any) -> None:
    end = time.monotonic() + 600
    while True:
        try:
            if condition():
                return
        except AssertionError:
            assert time.monotonic() < end
        time.sleep(0.1)
