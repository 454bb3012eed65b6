"""The server process: its key, its address, its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aenv.api.auth import ApiKeys
from aenv.api.protocol import MAX_HEAD
from aenv.api.server import serve, usage
from aenv.errors import HostNotReady
from aenv.images.progress import Progress
from aenv.node import Node
from tests.unit.api.support import fake_settings, running

PROGRAM = "from aenv.api.server import run; from aenv.settings import Settings; run(Settings())"


def test_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path)
    key = ApiKeys.load(settings).key
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", key)
    assert settings.api_key_file.stat().st_mode & 0o777 == 0o600
    assert settings.api_key_file.parent.stat().st_mode & 0o777 == 0o700
    settings.api_key_file.chmod(0o644)
    assert ApiKeys.load(settings).key == key
    assert settings.api_key_file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in settings.api_key_file.parent.iterdir()] == ["api-key"]


def test_key_from_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_API_KEY", "x" * 32)
    settings = fake_settings(tmp_path)
    assert ApiKeys.load(settings).key == "x" * 32
    assert not settings.api_key_file.exists()
    assert "AENV_API_KEY" in usage("http://h", settings)
    assert "x" * 32 not in usage("http://h", settings)
    monkeypatch.setenv("AENV_API_KEY", "short")
    with pytest.raises(HostNotReady, match="AENV_API_KEY"):
        ApiKeys.load(settings)


def test_unusable_key_files_are_explained(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path)
    settings.api_key_file.parent.mkdir()
    settings.api_key_file.write_text("two\nlines\n")
    with pytest.raises(HostNotReady, match="api-key"):
        ApiKeys.load(settings)
    settings.api_key_file.unlink()
    settings.api_key_file.mkdir()
    with pytest.raises(HostNotReady, match="directory"):
        ApiKeys.load(settings)


async def test_address_in_use_is_told_before_the_node_starts(tmp_path: Path) -> None:
    async def run(port: int) -> None:
        settings = fake_settings(tmp_path, port=port)
        await serve(settings, Node(settings), asyncio.Event(), ready=print)

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(HostNotReady, match="AENV_PORT"):
        await run(taken.getsockname()[1])
    assert not (tmp_path / "aenv.db").exists()


async def test_stop_during_the_start_cancels_it(tmp_path: Path) -> None:
    class Slow(Node):
        cancelled = False

        async def start(self, progress: Progress | None = None) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    settings = fake_settings(tmp_path)
    stop = asyncio.Event()
    node = Slow(settings)
    asyncio.get_running_loop().call_later(0.05, stop.set)
    async with asyncio.timeout(5):
        await serve(settings, node, stop, ready=print)
    assert node.cancelled


@pytest.mark.parametrize("start", ["GET /", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\n"])
async def test_strangers_can_not_fill_the_memory_with_headers(tmp_path: Path, start: str) -> None:
    line = b"X: y\r\n" * 10_000 if start.endswith("\n") else b"x" * 60_000
    async with running(fake_settings(tmp_path)) as server:
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        sent = 0
        with suppress(ConnectionError):
            writer.write(start.encode())
            while sent < 100 * MAX_HEAD:
                writer.write(line)
                await writer.drain()
                sent += len(line)
        assert sent < 100 * MAX_HEAD
        with suppress(ConnectionError):
            assert b" 400 " in await reader.readline()
        writer.close()
        assert (await server.request("GET", "/health")).status == 204


async def test_ipv6(tmp_path: Path) -> None:
    async with running(fake_settings(tmp_path, host="::1")) as server:
        assert server.url.startswith("http://[::1]:")
        assert (await server.request("GET", "/health")).status == 204


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_process_prints_one_line_and_ends_cleanly(tmp_path: Path, signum: signal.Signals) -> None:
    environment = {**os.environ, "AENV_HOME": str(tmp_path), "AENV_RUNTIME": "fake", "AENV_PORT": "0"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environment, stdout=-1, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
            key = (tmp_path / "secrets" / "api-key").read_text().strip()
            assert re.search(r"E2B_API_URL=http://127\.0\.0\.1:[1-9]\d* ", line)
            assert str(tmp_path / "secrets" / "api-key") in line
            assert key not in line
            process.send_signal(signum)
            rest, _ = await process.communicate()
            assert (process.returncode, rest) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_process_says_what_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "AENV_HOME": str(tmp_path), "AENV_RUNTIME": "fake", "AENV_HOST": "192.0.2.1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environment, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert err.decode().startswith("aenv: can't listen on 192.0.2.1")
    assert b"Traceback" not in err
