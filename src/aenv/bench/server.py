"""A server of the benchmark's own, and what the kernel tells of its process."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

import aiohttp

from aenv.errors import HostNotReady, RuntimeFailure
from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient, new_session
from aenv.guest.events import End, Stdout
from aenv.ids import new_api_key

START_TIMEOUT = 600.0
"""Seconds; the first start on a home folder builds the root file system."""

ONE_GUEST: Mapping[str, int | str] = {"hot_vms": 0, "bare_vms": 0, "prepared_slots": 0}
"""Settings of a server that has no guests but those that are asked for."""

_ESTABLISHED = "01"


@dataclass
class Server:
    """A running server."""

    url: str
    key: str
    pid: int
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request to the API, as the SDKs send it. Raises RuntimeFailure if it is refused."""
        return (await self.timed_call(method, path, body))[0]

    async def timed_call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, float]]:
        """`call`, and what the server told of its stages, ms."""
        headers = {"X-API-KEY": self.key}
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            if response.status >= 400:
                raise RuntimeFailure(f"{method} {path}: {response.status} {await response.text()}")
            stages = response.headers.get("Server-Timing", "").split(", ")
            pairs = (stage.partition(";dur=") for stage in stages if stage)
            timings = {name: float(duration) for name, _, duration in pairs}
            return (await response.json() if response.status != 204 else None), timings

    async def create(self) -> dict[str, Any]:
        """A sandbox that outlives the run; its record as the API gives it."""
        created: dict[str, Any] = await self.call(
            "POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600}
        )
        return created

    def guest(self, sandbox: dict[str, Any]) -> EnvdClient:
        """A client of the sandbox's agent that goes through the server."""
        return EnvdClient(
            self.url,
            session=self.session,
            token=sandbox.get("envdAccessToken"),
            headers=routing(sandbox, ENVD_PORT),
            user="user",
        )

    def direct_guest(self, sandbox: dict[str, Any]) -> EnvdClient:
        """A client of the agent of the server's only sandbox that goes straight to it."""
        return EnvdClient(
            f"http://{self.guest_address()}:{ENVD_PORT}",
            session=self.session,
            token=sandbox.get("envdAccessToken"),
            user="user",
        )

    def guest_address(self) -> str:
        """Where the server's only guest is, told by the connection that the server keeps to its agent."""
        sockets = _sockets(self.pid)
        found = set()
        for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            address, port = (int(part, 16) for part in remote.split(":"))
            if state == _ESTABLISHED and port == ENVD_PORT and inode in sockets:
                found.add(str(IPv4Address(address.to_bytes(4, sys.byteorder))))
        if len(found) != 1:
            raise RuntimeFailure(f"one guest was expected, and these addresses found: {sorted(found)}")
        return found.pop()


def routing(sandbox: dict[str, Any], port: int) -> dict[str, str]:
    """The headers that lead to a port of the sandbox."""
    return {"E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": str(port)}


@asynccontextmanager
async def running_server(
    home: Path, *, cores: Collection[int] = (), settings: Mapping[str, int | str]
) -> AsyncIterator[Server]:
    """A server with these settings until the block ends, on `cores` only if there are any.

    Raises HostNotReady if it doesn't start; it says on stderr why.
    """
    key = new_api_key()
    chosen = {f"AENV_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**os.environ, **chosen, "AENV_API_KEY": key}
    command = [sys.executable, "-m", "aenv.cli", "server", "--home", str(home), "--port", "0"]
    command = [*pinned(cores), *command, "--host", "127.0.0.1"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    try:
        url = await _url(process)
        async with new_session() as session:
            yield Server(url, key, process.pid, session)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def pinned(cores: Collection[int]) -> list[str]:
    """The command in front of another that keeps it on these cores."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []


async def _url(process: asyncio.subprocess.Process) -> str:
    told = cast("asyncio.StreamReader", process.stdout)
    async with asyncio.timeout(START_TIMEOUT):
        while line := await told.readline():
            if found := re.search(rb"http://[^\s;]+", line):
                return found[0].decode()
    raise HostNotReady("the server didn't start; it said why above")


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def resident(pid: int, name: str = "VmRSS") -> int:
    """Bytes of memory that a process holds now, or held at most (`VmHWM`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split(maxsplit=1)[0]) * 1024


def forget_peak(pid: int) -> None:
    """Let `VmHWM` start again from now; see proc(5), `clear_refs`."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Clock:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def ms(self) -> float:
        """Now."""
        return (time.perf_counter() - self._started) * 1000


async def first_command(guest: EnvdClient, clock: Clock) -> float:
    """A first command, as `commands.run` of the SDKs sends it; when `clock` saw its output here.

    Raises RuntimeFailure if it says or returns something else.
    """
    seen, output = 0.0, b""
    async with await guest.processes.start("/bin/bash", ["-l", "-c", "echo ready"]) as process:
        async for event in process:
            if isinstance(event, Stdout):
                seen = seen or clock.ms()
                output += event.data
            elif isinstance(event, End) and (event.exit_code, output) == (0, b"ready\n"):
                return seen
    raise RuntimeFailure(f"the command answered {output!r}")
