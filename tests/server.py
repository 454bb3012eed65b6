"""A real server process on real VMs, for the tests that look at the whole."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aenv.settings import Settings

ROOT = Path(__file__).parent.parent
STATE = Path(os.environ.get("AENV_STATE", ROOT / ".state"))
AENV = Path(sys.executable).parent / "aenv"

START_SECONDS = 600
"""The first start builds the base root file system."""


@dataclass(frozen=True)
class Server:
    """A running server. `environment` is what a client needs."""

    url: str
    home: Path
    pid: int
    domain: str | None = None

    @property
    def key(self) -> str:
        """Its API key."""
        return (self.home / "secrets" / "api-key").read_text().strip()

    @property
    def tag(self) -> str:
        """What its namespaces and links are named with; another server on the host has another."""
        return Settings(home=self.home).tag

    def namespaces(self) -> list[str]:
        """The network namespaces that it has."""
        found = json.loads(subprocess.check_output(["ip", "-json", "netns", "list"]) or b"[]")
        return [each["name"] for each in found if f"-{self.tag}-" in each["name"]]

    def links(self) -> list[str]:
        """The network links that it has on the host."""
        found = json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))
        return [each["ifname"] for each in found if self.tag in each["ifname"]]

    def mounts(self) -> list[str]:
        """The mounts that it has made."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if self.tag in line or str(self.home) in line]

    def vmms(self) -> list[str]:
        """The VMM processes that use its home folder, whoever is their parent."""
        command = ["pgrep", "-af", f"qemu-system.*{self.home}/"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the SDKs and the CLI read."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "AENV_"))}
        return {**kept, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": self.key}

    @property
    def domain_environment(self) -> dict[str, str]:
        """The variables for a client that knows the server by its domain only."""
        tls = self.home / "tls"
        others = {name: value for name, value in self.environment.items() if not name.endswith("_URL")}
        return {
            **others,
            "E2B_DOMAIN": str(self.domain),
            "SSL_CERT_FILE": str(tls / "ca-bundle.pem"),
            "NODE_EXTRA_CA_CERTS": str(tls / "ca.pem"),
            "NO_PROXY": "*",
        }


def home(name: str) -> Path:
    """A home folder for one server, with the root file system that all of them share.

    It is made at the first call and kept between runs; servers that run side by side need one each.
    """
    prepared, wanted = STATE / "prepared", STATE / f"home-{name}"
    if not (prepared / "aenv.db").exists():
        subprocess.run([AENV, "setup", "--home", str(prepared)], check=True, timeout=START_SECONDS)
    for folder in ("images", "bundle"):
        if not (wanted / folder).exists():
            shutil.copytree(prepared / folder, wanted / folder, symlinks=True, copy_function=os.link)
    return wanted


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running_server(home: Path, **settings: object) -> Iterator[Server]:
    """A server on `home` until the block ends; `settings` become `AENV_…` variables."""
    process = launch(home, 0, **settings)
    try:
        domain = settings.get("domain")
        yield Server(url_of(process, home), home, process.pid, None if domain is None else str(domain))
    finally:
        end(process)


def launch(home: Path, port: int, **settings: object) -> subprocess.Popen[bytes]:
    """Start a server; 0 lets it choose a port. `url_of` waits for it, `end` ends it."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **{f"AENV_{name.upper()}": str(value) for name, value in settings.items()}}
    with (home / "server.log").open("ab") as errors:
        return subprocess.Popen(
            [AENV, "server", "--home", str(home), "--port", str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        )


def end(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> None:
    """End a server and wait until it is gone."""
    if process.poll() is None:
        process.send_signal(number)
    process.wait(timeout=120)
    if process.stdout is not None:
        process.stdout.close()


def url_of(process: subprocess.Popen[bytes], home: Path) -> str:
    """The URL in the line that a started server prints."""
    assert process.stdout is not None
    end = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            if selector.select(timeout=1):
                found = re.search(r"http://\S+?(?=;)", process.stdout.readline().decode())
                if found:
                    return found[0]
                if process.poll() is not None:
                    break
    raise AssertionError(f"the server didn't start: {(home / 'server.log').read_text()[-2000:]}")
