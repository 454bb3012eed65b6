"""A server that is killed and started again, at one address, and the killer that does it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

from aenv.cli.api import ApiClient
from aenv.cli.config import Connection
from tests.server import Server, end, free_port, launch, url_of

SETTINGS = {"hot_vms": 1, "bare_vms": 1, "stopped_vms": 2, "prepared_slots": 2, "metrics_interval": 2}

SERVER_SHARE = 0.5
"""How many of the kills hit the server; the others hit a VMM."""

STOP_SHARE = 0.2
"""How many of the server's deaths come while it stops."""

AGAIN_SHARE = 0.3
"""How many are followed by another one, while it starts."""

MOMENT = 4.0
"""Seconds within which a start or a stop is interrupted."""


class Victim:
    """A server process on a home folder. Whoever finds it away waits for `answering`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.answering = asyncio.Event()
        self.killed: set[str] = set()
        """Names of the instances whose VMM was killed."""
        self.deaths = 0
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> Server:
        """What the host shows of it."""
        assert self._process is not None
        return Server(f"http://127.0.0.1:{self._port}", self.home, self._process.pid)

    def client(self) -> ApiClient:
        """A client of the API."""
        return ApiClient(Connection(self.server.url, self.server.key))

    async def start(self) -> None:
        """Start it; clients may come."""
        self._process = launch(self.home, self._port, **SETTINGS)
        await asyncio.to_thread(url_of, self._process, self.home)
        self.answering.set()

    async def die(self, chance: random.Random) -> None:
        """Kill it, and start it again. It may be stopping when it dies, and die again as it starts."""
        assert self._process is not None
        self.answering.clear()
        if chance.random() < STOP_SHARE:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.sleep(chance.uniform(0, MOMENT))
        await self._kill()
        while chance.random() < AGAIN_SHARE:
            self._process = launch(self.home, self._port, **SETTINGS)
            await asyncio.sleep(chance.uniform(0, MOMENT))
            await self._kill()
        await self.start()

    async def _kill(self) -> None:
        assert self._process is not None
        self.deaths += 1
        await asyncio.to_thread(end, self._process, signal.SIGKILL)

    async def stop(self) -> None:
        """Stop it as an administrator does."""
        assert self._process is not None
        self.answering.clear()
        await asyncio.to_thread(end, self._process)

    def kill_a_vmm(self, chance: random.Random) -> None:
        """Kill the VMM of one instance, whatever it is doing."""
        vmms = self.server.vmms()
        if not vmms:
            return
        line = chance.choice(vmms)
        found = re.search(rf"{self.home}/workspace/(\S+)", line)
        assert found is not None
        self.killed.add(found[1])
        try:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended by itself

    def record(self, sandbox_id: str) -> dict[str, Any] | None:
        """A sandbox's record in the database."""
        connection = sqlite3.connect(self.home / "aenv.db", timeout=30)
        try:
            row = connection.execute("SELECT record FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
        finally:
            connection.close()
        return None if row is None else dict(json.loads(row[0]))


async def kill_until(end_at: float, victim: Victim, chance: random.Random, pause: float) -> None:
    """Kill the server or a VMM again and again, after `pause` seconds on average, until that time."""
    while (rest := end_at - time.monotonic()) > 0:
        await asyncio.sleep(min(rest, chance.expovariate(1 / pause)))
        if chance.random() < SERVER_SHARE:
            await victim.die(chance)
        else:
            await asyncio.to_thread(victim.kill_a_vmm, chance)
