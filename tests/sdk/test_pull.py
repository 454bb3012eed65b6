"""`aenv pull` from a real registry to sandboxes that run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.builder import archive, entry, files, image, oci_layout
from tests.images.registries import PASSWORD, USER, Registry, running_registry
from tests.sdk.test_cli import Cli
from tests.server import STATE, Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry"), secret=True) as started:
        yield started


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


def busybox() -> bytes:
    """A layer with a shell and what goes with it."""
    program = Path(shutil.which("busybox") or STATE / "busybox-static/bin/busybox").read_bytes()
    links = [
        entry(f"bin/{name}", kind=b"2", link="busybox") for name in ("sh", "cat", "id", "ls", "pwd", "sleep")
    ]
    return archive([entry("bin/busybox", program, mode=0o755), *links])


def test_from_an_image_to_a_sandbox(cli: Cli, registry: Registry) -> None:
    config = {"Env": ["GREETING=hello"], "WorkingDir": "/srv", "User": "root"}
    made = image([busybox(), files({"srv/motd": b"from the image\n"})], config=config)
    name = registry.push("team/app", made, "v1")
    refused = cli("pull", name, code=1)
    assert "error: the build failed at its image" in refused
    arguments = ["--memory", "256", "--start-cmd", "echo $GREETING > /started; sleep 1000"]
    login = ["--registry-user", USER, "--registry-password-stdin"]
    ready = ["--ready-cmd", "[ -s /started ]"]
    template = cli("pull", name, *arguments, *ready, *login, stdin=PASSWORD + "\n").strip()
    assert template == "app"
    info = cli.json("template", "info", "app:v1")
    assert isinstance(info, dict)
    assert (info["memoryMB"], info["buildCount"]) == (256, 1)
    sandbox = cli("start", "app", "--detach").strip()
    try:
        assert cli("exec", sandbox, "sh", "-c", "pwd; cat motd /started; id -u") == (
            "/srv\nfrom the image\nhello\n0\n"
        )
    finally:
        cli("rm", sandbox)
        cli("template", "rm", "app")


def test_an_archive_comes_from_the_client(cli: Cli, tmp_path: Path) -> None:
    made = image([busybox(), files({"etc/motd": b"sent\n"})])
    for name, data in oci_layout(made).items():
        path = tmp_path / "layout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    template = cli.json("pull", str(tmp_path / "layout"), "--name", "sent:v1")
    assert json.dumps(template).count("sent") == 2
    sandbox = cli("start", "sent:v1", "--detach").strip()
    try:
        assert cli("exec", sandbox, "cat", "/etc/motd") == "sent\n"
    finally:
        cli("rm", sandbox)
        cli("template", "rm", "sent")
