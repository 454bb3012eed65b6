"""Templates built with the unmodified SDK, on real VMs: every instruction, the cache, failures, tags."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import wait_for_port, wait_for_timeout
from e2b.exceptions import BuildException

from tests.images.builder import archive, entry, image
from tests.images.registries import running_registry
from tests.sdk.client import Client
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


class Log:
    """What a build says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, entry: Any) -> None:
        self.lines.append(entry.message)

    def output(self) -> list[str]:
        """What commands printed."""
        return [line.partition("[stdout]: ")[2] for line in self.lines if "[stdout]: " in line]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Files to copy."""
    for name, text in {
        "a.txt": "a\n",
        "skipped.log": "x",
        "tree/run.sh": "#!/bin/bash\necho from the tree\n",
        "tree/deep/er.txt": "deep",
        ".dockerignore": "*.log\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tree/run.sh").chmod(0o755)
    (tmp_path / "tree/link").symlink_to("deep/er.txt")
    return tmp_path


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """A name for a template, which is deleted at the end."""
    found = f"built-{time.time_ns()}"
    yield found
    with contextlib.suppress(AssertionError):
        client.delete_template(found)


def all_of_it(client: Client, context: Path, unique: str) -> Any:
    """A template with every instruction."""
    return (
        client.new_template(context)
        .from_template("base")
        .set_envs({"GREETING": f"hello {unique}", "PATH": "/opt/tree:$PATH"})
        .copy("a.txt", "/opt/files/")
        .copy("tree", "/opt/tree", user="root")
        .copy(["a.txt", "tree/deep/er.txt"], "/opt/both/", mode=0o600)
        .set_workdir("/srv/app")
        .run_cmd(["echo $GREETING", "pwd", "id -un", "run.sh", "touch made"])
        .make_dir("data", mode=0o700)
        .make_symlink("/opt/files/a.txt", "link")
        .run_cmd("id -un > /root/who", user="root")
        .set_user("builder")
        .run_cmd("id -un; cat /opt/files/a.txt; ls -A /opt/files /opt/tree")
        .set_start_cmd("python3 -m http.server 8000 --directory /opt/files", wait_for_port(8000))
    )


def test_every_instruction(client: Client, context: Path, name: str) -> None:
    log = Log()
    template = all_of_it(client, context, name)
    info = client.build(
        template, f"{name}:v1", tags=["stable"], memory_mb=640, cpu_count=1, on_build_logs=log
    )
    assert info.name == f"{name}:v1"
    printed = log.output()
    assert printed[:4] == [f"hello {name}", "/srv/app", "user", "from the tree"]
    assert printed[4:] == [
        "builder",
        "a",
        *("/opt/files:", "a.txt", "", "/opt/tree:", "deep", "link", "run.sh"),
    ]

    again = Log()
    client.build(
        all_of_it(client, context, name), f"{name}:v2", memory_mb=640, cpu_count=1, on_build_logs=again
    )
    assert not again.output()

    sandbox = client.create(f"{name}:stable", envs={"MINE": "too"})
    try:
        result = sandbox.commands.run(
            "echo $GREETING; echo $MINE; pwd; id -un; curl -s localhost:8000/a.txt; "
            "stat -c '%n %U %a' /opt/files/a.txt /opt/tree/run.sh /opt/both/er.txt /srv/app/made data; "
            "readlink /opt/tree/link link; run.sh"
        )
        assert result.stdout.splitlines() == [
            *(f"hello {name}", "too", "/srv/app", "builder", "a"),
            "/opt/files/a.txt user 644",
            "/opt/tree/run.sh root 755",
            "/opt/both/er.txt user 600",
            "/srv/app/made user 644",
            "data user 700",
            *("deep/er.txt", "/opt/files/a.txt", "from the tree"),
        ]
        assert sandbox.files.read("/root/who", user="root") == "root\n"
        info = sandbox.get_info()
        assert (info.cpu_count, info.memory_mb) == (1, 640)
    finally:
        sandbox.kill()
    assert client.template_class.exists(name, **client.api)
    pointing = {tag.tag: tag.build_id for tag in client.template_class.get_tags(name, **client.api)}
    assert set(pointing) == {"v1", "stable", "v2"}
    assert pointing["v1"] == pointing["stable"] != pointing["v2"]


def test_a_step_that_fails(client: Client, server: Server, name: str) -> None:
    vms = len(server.vmms())
    template = (
        client.new_template()
        .from_template("base")
        .run_cmd("echo fine")
        .run_cmd("echo some words; echo and an error >&2; exit 7")
        .run_cmd("echo never")
    )
    log = Log()
    with pytest.raises(BuildException) as caught:
        client.build(template, name, on_build_logs=log)
    message = str(caught.value)
    assert re.search(r"RUN echo some words.* failed with exit code 7", message)
    assert "\nsome words" in message
    assert "\nand an error" in message
    assert "never" not in log.output()
    assert not client.template_class.exists(name, **client.api)
    assert len(server.vmms()) <= vms + 1  # a spare may have been made meanwhile


@pytest.mark.long
def test_in_the_background_from_a_snapshot(client: Client, name: str) -> None:
    sandbox = client.create(metadata={"for": "a build"})
    sandbox.files.write("/home/user/fresh", "just written")
    snapshot = sandbox.create_snapshot()
    sandbox.kill()
    template = client.new_template().from_template(snapshot.snapshot_id).run_cmd("cat fresh")
    template = template.set_ready_cmd(wait_for_timeout(100))
    info = client.template_class.build_in_background(template, name, **client.api)
    end = time.monotonic() + 300
    while (status := client.template_class.get_build_status(info, **client.api)).status.value in {
        "building",
        "waiting",
    }:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert status.status.value == "ready"
    assert "just written" in "\n".join(entry.message for entry in status.log_entries)
    client.sandbox_class.delete_snapshot(snapshot.snapshot_id, **client.api)


def shell_image() -> Any:
    """An image with bash of this machine and nothing else: no accounts, no tools."""
    libraries = re.findall(r"(/\S+) \(", subprocess.check_output(["ldd", "/bin/bash"], text=True))
    files = [
        entry(path.lstrip("/"), Path(path).read_bytes(), mode=0o755) for path in ("/bin/bash", *libraries)
    ]
    config = {"Env": ["FROM_IMAGE=yes", "PATH=/bin"], "WorkingDir": "/work"}
    return image([archive(files), archive([entry("work/file", b"of the image")])], config=config)


@pytest.mark.long
def test_from_an_image(client: Client, name: str, tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        registry.push("tests/shell", shell_image())
        template = (
            client.new_template()
            .from_image(registry.name("tests/shell"))
            .run_cmd(f'echo "$FROM_IMAGE $(<file) $PWD"; echo {name} > /home/user/made')
        )
        log = Log()
        client.build(template, name, on_build_logs=log)
        assert log.output() == ["yes of the image /work"]
        again = Log()
        client.build(template, name, on_build_logs=again)
        assert not again.output()
    sandbox = client.create(name)
    try:
        assert (
            sandbox.commands.run('echo "$FROM_IMAGE $(</home/user/made) $PWD"').stdout
            == f"yes {name} /work\n"
        )
    finally:
        sandbox.kill()
    missing = client.new_template().from_image(f"127.0.0.1:{os.getpid() % 1000 + 2}/none")
    with pytest.raises(BuildException, match="127"):
        client.build(missing, name)


@pytest.mark.long
def test_the_disk_grows(client: Client, name: str) -> None:
    template = client.new_template().from_template("base").run_cmd("echo x")
    client.build(template, name, min_free_disk_mb=20480)
    sandbox = client.create(name)
    try:
        free = sandbox.commands.run("df --output=avail -m / | tail -1").stdout
        assert int(free) >= 20480
    finally:
        sandbox.kill()
