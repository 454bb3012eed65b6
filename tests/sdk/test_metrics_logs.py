"""Metrics and logs of real sandboxes."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from e2b import SandboxNotFoundException

from tests.sdk.client import Client, eventually
from tests.server import AENV, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(180)]


class Api:
    """The control plane's routes that the SDKs don't wrap."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self._url = server.url
        self._key = server.key
        self.sandbox_id = sandbox_id

    def get(self, path: str, **query: Any) -> Any:
        response = httpx.get(self._url + path, params=query, headers={"X-API-KEY": self._key}, timeout=30)
        assert response.status_code == 200, response.text
        return response.json()

    def logs(self, **query: Any) -> list[Any]:
        return list(self.get(f"/v2/sandboxes/{self.sandbox_id}/logs", **query)["logs"])

    def events(self, logger: str) -> list[str]:
        return [e["fields"].get("event", "") for e in self.logs() if e["fields"]["logger"] == logger]


@pytest.fixture
def api(server: Server, sandbox: Any) -> Api:
    return Api(server, sandbox.sandbox_id)


def test_metrics_are_there_at_once(sandbox: Any) -> None:
    (metrics, *_) = sandbox.get_metrics()
    assert metrics.cpu_count == 2
    assert 0 <= metrics.cpu_used_pct <= 100
    assert 0 < metrics.mem_used < metrics.mem_total <= 512 << 20
    assert 0 <= metrics.mem_cache < metrics.mem_total
    assert 0 < metrics.disk_used < metrics.disk_total
    assert abs(datetime.now(UTC) - metrics.timestamp) < timedelta(minutes=1)


def test_metrics_become_a_history_that_start_and_end_cut(sandbox: Any, api: Api) -> None:
    def seconds() -> float:
        first, *_, last = sandbox.get_metrics() * 2
        return float((last.timestamp - first.timestamp).total_seconds())

    eventually(lambda: seconds() > 2, 40, sandbox.get_metrics)  # the SDK asks for whole seconds
    history = sandbox.get_metrics()
    assert history == sorted(history, key=lambda metrics: metrics.timestamp)
    later = sandbox.get_metrics(start=history[0].timestamp + timedelta(seconds=1))
    assert later
    assert later[0].timestamp > history[0].timestamp
    assert sandbox.get_metrics(end=history[0].timestamp - timedelta(minutes=1)) == []
    latest = api.get("/sandboxes/metrics", sandbox_ids=f"{sandbox.sandbox_id},inosuchsandbox0000000")
    assert list(latest["sandboxes"]) == [sandbox.sandbox_id]


def test_memory_that_a_process_takes_is_seen(client: Client) -> None:
    sandbox = client.create()
    try:
        before = sandbox.get_metrics()[-1].mem_used
        sandbox.commands.run(
            "python3 -c 'x = bytearray(150 << 20); import time; time.sleep(120)'", background=True
        )
        grown = before + (120 << 20)
        eventually(lambda: sandbox.get_metrics()[-1].mem_used > grown, 40, sandbox.get_metrics)
        sandbox.pause()
        kept = sandbox.get_metrics()
        assert kept, "the history of a paused sandbox"
    finally:
        sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_metrics()


def test_the_log_tells_of_processes_and_files(sandbox: Any, api: Api) -> None:
    sandbox.commands.run("echo never-logged; echo $((40 + 2)); exit 0")
    sandbox.files.write("noted", "content")
    eventually(lambda: "end" in api.events("process"), 10, api.logs)
    entries = api.logs()
    start = next(e for e in entries if "never-logged" in e["fields"].get("command", ""))
    assert start["fields"]["user"] == "user"
    ended = [e["fields"] for e in entries if e["fields"].get("event") == "end"]
    assert [end["exit_code"] for end in ended if end["pid"] == start["fields"]["pid"]] == ["0"]
    assert any(e["message"] == "write /home/user/noted" for e in entries)
    assert not any("42" in e["message"] for e in entries), "what a process prints is not logged"
    assert api.events("sandbox")[0] == "create"
    assert [e["timestamp"] for e in entries] == sorted(e["timestamp"] for e in entries)
    old = api.get(f"/sandboxes/{sandbox.sandbox_id}/logs", limit=3)
    assert [json.loads(line["line"])["message"] for line in old["logs"]] == [
        e["message"] for e in entries[:3]
    ]
    assert [e["message"] for e in old["logEntries"]] == [e["message"] for e in entries[:3]]


def test_the_kernel_is_heard(client: Client, server: Server) -> None:
    sandbox = client.create()
    try:
        # The OOM killer takes the biggest process, which is the one that calls it.
        program = "x = b'x' * (99 << 20); open('/proc/sysrq-trigger', 'w').write('f')"
        sandbox.commands.run(f'python3 -c "{program}"', user="root", background=True)
        api = Api(server, sandbox.sandbox_id)
        eventually(lambda: bool(api.logs(level="warn", search="Killed process")), 30, api.logs)
        assert {entry["fields"]["logger"] for entry in api.logs(level="error")} == {"kernel"}
    finally:
        sandbox.kill()


def test_a_log_survives_pauses_and_tells_of_them(client: Client, server: Server) -> None:
    sandbox = client.create()
    api = Api(server, sandbox.sandbox_id)
    try:
        sandbox.commands.run("true before")
        sandbox.pause()
        paused = api.logs()
        assert [e["fields"]["event"] for e in paused if e["fields"]["logger"] == "sandbox"] == [
            "create",
            "pause",
        ]
        assert any("true before" in e["message"] for e in paused)
        sandbox.connect()
        sandbox.commands.run("true after")
        (child,) = sandbox.fork(count=1)
        snapshot = sandbox.create_snapshot()
        eventually(lambda: "snapshot" in api.events("sandbox"), 10, api.logs)
        assert api.events("sandbox") == ["create", "pause", "resume", "fork", "snapshot"]
        started = [e["fields"]["command"] for e in api.logs() if e["fields"].get("event") == "start"]
        assert len(started) == 2, "nothing twice"
        assert [command.rpartition("-c ")[2] for command in started] == ["true before", "true after"]
        of_child = Api(server, child.sandbox_id)
        assert of_child.events("sandbox") == ["create", "forked"]
        assert of_child.events("process") == [], "what the parent did is the parent's"
        child.kill()
        url = f"{server.url}/templates/{snapshot.snapshot_id}"
        assert httpx.delete(url, headers={"X-API-KEY": server.key}).status_code == 204
    finally:
        sandbox.kill()
    eventually(lambda: not list((server.home / "logs").glob(f"{sandbox.sandbox_id}*")), 5, lambda: "the file")


def test_the_command_line_shows_both(server: Server, sandbox: Any) -> None:
    def aenv(*arguments: str) -> str:
        command = [str(AENV), *arguments, "--output", "json"]
        finished = subprocess.run(
            command, env=server.environment, capture_output=True, text=True, timeout=60, check=True
        )
        return str(finished.stdout)

    sandbox.commands.run("true shown")
    lines = aenv("logs", sandbox.sandbox_id).splitlines()
    assert any("true shown" in json.loads(line)["message"] for line in lines)
    assert aenv("logs", sandbox.sandbox_id, "--level", "error") == ""
    assert json.loads(aenv("stats", sandbox.sandbox_id))[-1]["cpuCount"] == 2
