"""A real server process on real VMs, for the tests that look at the whole."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def key(self) -> str:
        """Its API key."""
        return (self.home / "secrets" / "api-key").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the SDKs and the CLI read."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "AENV_"))}
        return {**kept, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": self.key}


@contextmanager
def running_server(home: Path, **settings: object) -> Iterator[Server]:
    """A server on `home` until the block ends; `settings` become `AENV_…` variables."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **{f"AENV_{name.upper()}": str(value) for name, value in settings.items()}}
    log = home / "server.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [AENV, "server", "--home", str(home), "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Server(_url(process, log), home, process.pid)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        if process.stdout is not None:
            process.stdout.close()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
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
    raise AssertionError(f"the server didn't start: {log.read_text()[-2000:]}")
