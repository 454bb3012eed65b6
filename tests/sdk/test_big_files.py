"""A file of 2 GB goes up and down, and nobody on the way keeps it in memory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.client import Client
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(900)]

CHUNK, CHUNKS = 1 << 20, 2048
ALLOWED = 64 << 20
"""Growth of a process, in bytes: buffers and garbage, far from the size of the file."""


class Peak:
    """How much the memory of the server and of envd grows, at most, while the block runs."""

    def __init__(self, server: Server, sandbox: Any) -> None:
        self._server = server
        self._sandbox = sandbox
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._first: tuple[int, int] | None = None
        self.growth = (0, 0)

    def __enter__(self) -> Peak:
        self._first = self._now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _now(self) -> tuple[int, int]:
        host = Path(f"/proc/{self._server.pid}/status").read_text().split("VmRSS:")[1].split()[0]
        guest = self._sandbox.commands.run("grep VmRSS /proc/1/status", user="root").stdout.split()[1]
        return int(host) << 10, int(guest) << 10

    def _watch(self) -> None:
        assert self._first is not None
        while not self._done.wait(2):
            now = self._now()
            host, guest = (
                max(old, new - first) for old, new, first in zip(self.growth, now, self._first, strict=True)
            )
            self.growth = host, guest


def _chunks() -> Iterator[bytes]:
    for number in range(CHUNKS):
        yield number.to_bytes(4, "big") * (CHUNK // 4)


def test_two_gigabytes(server: Server, client: Client, sandbox: Any) -> None:
    expected = hashlib.sha256()
    for chunk in _chunks():
        expected.update(chunk)
    with Peak(server, sandbox) as peak:
        sandbox.files.write("big", client.stream(_chunks()))
    assert max(peak.growth) < ALLOWED, peak.growth
    assert sandbox.files.get_info("big").size == CHUNK * CHUNKS

    got = hashlib.sha256()
    with Peak(server, sandbox) as peak:
        for chunk in sandbox.files.read("big", format="stream"):
            got.update(chunk)
    assert max(peak.growth) < ALLOWED, peak.growth
    assert got.digest() == expected.digest()
    sandbox.files.remove("big")
