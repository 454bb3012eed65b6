"""The benchmark of the proxy, as small as it goes: a real server, real nginx, real sockets."""

from __future__ import annotations

import asyncio
import os

import pytest

from aenv.bench import proxy
from aenv.bench.load import run_load
from aenv.bench.nginx import Address, require_nginx
from aenv.bench.rows import Report
from aenv.errors import HostNotReady


async def test_a_small_run_measures_everything_and_nothing_fails() -> None:
    said: list[str] = []
    report = Report(said.append, "fake")
    cores = os.sched_getaffinity(0)
    await proxy.measure(report, 1, proxy.Size(round_seconds=0.3, websockets=20, streams=20, events=2))
    assert said == []
    rows = {row["name"]: row for row in report.result()["rows"]}
    assert set(rows) == {
        "request_alone",
        "requests",
        "request_busy",
        "request_cpu",
        "idle_websocket",
        "open_streams",
    }
    assert all(row["n"] == row["ok"] > 0 for row in rows.values()), rows
    assert (rows["idle_websocket"]["n"], rows["open_streams"]["n"]) == (20, 20)
    assert rows["requests"]["p50"] == pytest.approx(1000 / rows["request_busy"]["p50"], rel=0.01)
    for name in ("request_alone", "request_busy", "open_streams"):
        assert rows[name]["ratio"] == pytest.approx(rows[name]["p50"] / rows[name]["reference"], rel=0.01)
    assert os.sched_getaffinity(0) == cores


async def test_what_isnt_answered_rightly_counts_as_failed() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    load = await run_load(address, {}, connections=3, seconds=0.2)
    server.close()
    await server.wait_closed()
    assert load.times == []
    assert load.failed == 6


def test_without_nginx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aenv.bench.nginx.shutil.which", lambda *_args, **_more: None)
    with pytest.raises(HostNotReady, match="apt-get install nginx-light"):
        require_nginx()
