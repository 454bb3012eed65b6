"""The server's domain over TLS: the unmodified SDKs, the CLI and plain URLs, by E2B_DOMAIN alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.names import local_names
from tests.server import AENV, ROOT, STATE, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]

SDKS = STATE / "sdks"


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Begin of a command line for programs that shall find the domain."""
    with local_names(tmp_path_factory.mktemp("names")) as prefix:
        yield prefix


def run(finding: list[str], command: Sequence[str | Path], server: Server) -> str:
    """Run a program that knows the domain only; what it printed."""
    whole: list[str | Path] = [*finding, *command]
    finished = subprocess.run(
        whole,
        env=server.domain_environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.parametrize(
    ("python", "errors"),
    [
        (Path(sys.executable), ["SandboxNotRunningException"]),
        pytest.param(SDKS / "python-2.45.1" / "bin" / "python", ["TimeoutException"], marks=pytest.mark.long),
    ],
    ids=["2.63.0", "2.45.1"],
)
def test_python(finding: list[str], python: Path, errors: list[str], server: Server) -> None:
    run(finding, [python, ROOT / "tests" / "sdk" / "hosts.py", *errors], server)


def test_javascript(finding: list[str], server: Server) -> None:
    # node finds packages from where a script is, so the script goes to them.
    script = shutil.copy(ROOT / "tests" / "sdk" / "js" / "hosts.mjs", SDKS / "js" / "hosts.mjs")
    run(finding, [Path(sys.executable).parent / "node", script], server)


def test_command_line(finding: list[str], server: Server) -> None:
    sandbox_id = run(finding, [AENV, "start", "base", "--detach"], server).strip().strip('"')
    try:
        assert run(finding, [AENV, "exec", sandbox_id, "echo", "over TLS"], server) == "over TLS\n"
    finally:
        run(finding, [AENV, "rm", sandbox_id], server)


def test_certs_prints_what_clients_need(server: Server) -> None:
    domain = server.domain or ""
    command = [str(AENV), "certs", "--home", str(server.home), "--domain", domain, "--output", "table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wanted = server.domain_environment
    for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "E2B_DOMAIN"):
        assert f"export {name}={wanted[name]}\n" in printed
