"""Start a server, drive a sandbox through the official E2B SDK, and print what happened.

Everything between `connect` and the end of `main` is plain E2B code that also runs against E2B's cloud.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2b import Sandbox
from rich.console import Console
from rich.table import Table

START_SECONDS = 900
"""The first start downloads a kernel and builds a root file system."""

console = Console()


class Stopwatch:
    """Collects how long named steps took, in milliseconds."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float, str]] = []

    @contextmanager
    def step(self, name: str, meaning: str) -> Iterator[None]:
        """Time the block."""
        started = time.perf_counter()
        yield
        self.steps.append((name, (time.perf_counter() - started) * 1000, meaning))

    def table(self) -> Table:
        """The steps as a table."""
        table = Table("step", "ms", "until", title="as the client saw it")
        for name, milliseconds, meaning in self.steps:
            table.add_row(name, f"{milliseconds:,.0f}", meaning)
        return table


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(home: Path, port: int) -> Iterator[str]:
    """A server process that ends with the block; yields its URL."""
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).parent / "aenv"), "server", "--port", str(port), "--home", str(home)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_up(url):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with code {process.returncode}; it said why above")
            if time.monotonic() > deadline:
                raise SystemExit("the server didn't start in time")
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)


def is_up(url: str) -> bool:
    """Whether a server answers at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:  # noqa: S310 (our own URL)
            return bool(response.status == 204)
    except (urllib.error.URLError, OSError):
        return False


COUNTER = """
import time
count = 0
while True:
    count += 1
    print(count, flush=True)
    time.sleep(0.1)
"""


def drive(watch: Stopwatch) -> None:
    """What a user's program does."""
    with watch.step("create", "the sandbox is ready"):
        sandbox = Sandbox.create("base", timeout=300)
    with watch.step("first command", "its output is here"):
        guest_kernel = sandbox.commands.run("uname -r").stdout.strip()
    console.print(f"guest kernel  {guest_kernel}    (sandbox {sandbox.sandbox_id})")
    console.print(f"host kernel   {platform.release()}")

    sandbox.files.write("/home/user/hello.py", "import sys\nprint('hello from', sys.version.split()[0])\n")
    console.print("program says ", sandbox.commands.run("python3 hello.py").stdout.strip())

    sandbox.files.write("/home/user/counter.py", COUNTER)
    sandbox.commands.run("python3 counter.py > counter.log", background=True)
    time.sleep(2)
    with watch.step("pause", "memory and disk are captured"):
        sandbox.pause()
    with watch.step("resume", "the sandbox is ready"):
        sandbox = Sandbox.connect(sandbox.sandbox_id)
    with watch.step("command after resume", "its output is here"):
        before = int(sandbox.commands.run("tail -n 1 counter.log").stdout)
    time.sleep(1)
    after = int(sandbox.commands.run("tail -n 1 counter.log").stdout)
    console.print(f"a process counted on across pause and resume: {before} … {after}")

    with watch.step("snapshot", "it can be started from"):
        snapshot = sandbox.create_snapshot()
    with watch.step("fork of 4", "4 copies are ready"):
        children = [child for child in sandbox.fork(count=4) if isinstance(child, Sandbox)]
    with watch.step("a command in each", "4 outputs are here"):
        counts = [child.commands.run("tail -n 1 counter.log").stdout.strip() for child in children]
    console.print("counters in the children, each on its own: ", ", ".join(counts))
    for child in children:
        child.kill()
    with watch.step("kill", "nothing is left of it"):
        sandbox.kill()
    Sandbox.delete_snapshot(snapshot.snapshot_id)


def main() -> None:
    """Run the server around the program."""
    home = Path(os.environ.get("AENV_HOME", "/var/lib/aenv"))
    watch = Stopwatch()
    with server(home, free_port()) as url:
        os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = url
        os.environ["E2B_API_KEY"] = (home / "secrets" / "api-key").read_text().strip()
        drive(watch)
    console.print(watch.table())
    console.print(
        "\nGo on with a server of your own:\n"
        "  .venv/bin/aenv server &\n"
        f"  export E2B_API_URL=http://127.0.0.1:8000 E2B_SANDBOX_URL=http://127.0.0.1:8000\n"
        f"  export E2B_API_KEY=$(cat {home}/secrets/api-key)\n"
        "  .venv/bin/aenv start base"
    )


if __name__ == "__main__":
    main()
