"""Logs and stats on the command line."""

from __future__ import annotations

import asyncio
import json

from tests.unit.cli.support import Cli, ControlPlane, log_entry

START = 1767225600.0


async def test_logs_are_printed_as_text_or_as_lines_of_json(cli: Cli, control: ControlPlane) -> None:
    control.logs = [log_entry(START - 1, "evil\x1b[2J", "warn", "kernel")]
    shown = (await cli("logs", "i1", "--level", "warn", "--output", "table")).out.decode()
    assert "warn  kernel   evil" in shown
    assert "\x1b" not in shown, "a sandbox doesn't steer the terminal"
    assert control.seen[-1][0] == "GET /v2/sandboxes/i1/logs?cursor=0&level=warn&direction=forward"
    lines = (await cli("logs", "i1")).out.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["evil\x1b[2J", "entry 1", "entry 2"]
    assert "level=info" in control.seen[-1][0]


async def test_following_shows_each_entry_once(cli: Cli, control: ControlPlane) -> None:
    process = await cli.start("logs", "i1", "-f", "--output", "json")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        lines = [await process.stdout.readline() for _ in range(3)]
    assert [json.loads(line)["message"] for line in lines] == ["entry 0", "entry 1", "entry 2"]
    control.states.clear()  # killed: the end
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"not found" in errors


async def test_stats_show_the_newest_sample(cli: Cli, control: ControlPlane) -> None:
    sizes = dict.fromkeys(("memUsed", "memTotal", "memCache", "diskUsed", "diskTotal"), 2 << 20)
    sample = {"timestamp": "2026-01-02T03:04:05Z", "cpuCount": 2, "cpuUsedPct": 12.34, **sizes}
    control.metrics = [{**sample, "cpuUsedPct": 99.0}, sample]
    shown = (await cli("stats", "i1", "--output", "table")).out.decode()
    assert "12.3 %" in shown
    assert "99" not in shown
    assert json.loads((await cli("stats", "i1")).out) == control.metrics


async def test_an_unknown_sandbox_is_an_error(cli: Cli) -> None:
    for command in ("logs", "stats"):
        done = await cli(command, "nosuch")
        assert done.code == 1
        assert "not found" in done.err
