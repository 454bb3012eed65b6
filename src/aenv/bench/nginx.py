"""nginx as a yardstick: a proxy to compare with, and a server quick enough never to be the limit."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.server import pinned
from aenv.errors import HostNotReady

START_TIMEOUT = 10.0
"""Seconds."""

_ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

_MAIN = """
daemon off;
master_process off;
error_log stderr error;
pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
{servers}
}}
"""

_PROXY = """
  upstream {name} {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen {listen} backlog=2048;
    location / {{
      proxy_pass http://{name};
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
"""

_ANSWER = """
  server {{
    listen {listen} backlog=2048;
    location / {{ default_type text/plain; return 200 "hello from the sandbox"; }}
  }}
"""


@dataclass(frozen=True)
class Address:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def require_nginx() -> str:
    """Its path. Raises HostNotReady if it isn't installed."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ADMIN_FOLDERS])
    found = shutil.which("nginx", path=search)
    if found is None:
        raise HostNotReady("nginx is missing, to compare with: apt-get install nginx-light")
    return found


def nginx_version() -> str:
    """As nginx says it."""
    said = subprocess.run([require_nginx(), "-v"], capture_output=True, text=True, check=True)
    return said.stderr.strip().rpartition("/")[2]


def free_address(host: str) -> Address:
    """An address at which nobody listened a moment ago."""
    with socket.create_server((host, 0)) as listener:
        return Address(host, listener.getsockname()[1])


def proxy_to(listen: Address, upstream: Address) -> str:
    """The part of a configuration that sends everything on."""
    return _PROXY.format(name=f"guest_{upstream.port}", listen=listen, upstream=upstream)


def answer_at(listen: Address) -> str:
    """The part of a configuration that answers everything at once."""
    return _ANSWER.format(listen=listen)


@asynccontextmanager
async def running_nginx(
    folder: Path, servers: str, listen: Address, *, cores: Collection[int] = ()
) -> AsyncIterator[int]:
    """The pid of an nginx of one process, until the block ends; it keeps what it writes in `folder`.

    Raises HostNotReady if it doesn't listen at `listen` in time.
    """
    config = await asyncio.to_thread(_write_config, folder, servers)
    command = [*pinned(cores), require_nginx(), "-e", "stderr", "-p", str(folder), "-c", str(config)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await _listening(process, listen)
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _write_config(folder: Path, servers: str) -> Path:
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(_MAIN.format(folder=folder, servers=servers))
    return config


async def _listening(process: asyncio.subprocess.Process, address: Address) -> None:
    end = asyncio.get_running_loop().time() + START_TIMEOUT
    while asyncio.get_running_loop().time() < end and process.returncode is None:
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            await writer.wait_closed()
            return
    raise HostNotReady(f"nginx didn't listen at {address}")
