"""Pulls on the command line, against a whole server on the fake runtime."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from pathlib import Path

import pytest

from aenv.cli import build_display
from aenv.cli.build_display import BuildDisplay
from aenv.cli.pull import default_name
from tests.images.builder import files, image, oci_layout
from tests.unit.api.support import Server
from tests.unit.cli.support import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


def root_archive(path: Path) -> str:
    """A root file system with one file."""
    path.write_bytes(files({"etc/motd": b"text"}))
    return str(path)


async def test_an_archive_is_sent_and_becomes_a_template(aenv: Cli, server: Server, tmp_path: Path) -> None:
    archive = root_archive(tmp_path / "My_Root.tar")
    done = await aenv("pull", archive, "--cpu", "3", "--memory", "256", "--tag", "v1")
    assert (done.code, done.out) == (0, b"my_root\n"), done.err
    assert "FROM the uploaded archive" in done.err
    assert "ready after" in done.err
    found = json.loads((await aenv("template", "info", "my_root:v1")).out)
    assert (found["cpuCount"], found["memoryMB"]) == (3, 256)
    assert await server.create(templateID="my_root")
    again = await aenv("pull", archive, "--name", "other:v2", "-o", "json")
    assert json.loads(again.out)["tags"] == ["v2"]
    shown = await aenv("template", "logs", "other:v2", "-o", "table")
    assert "ready after" in shown.out.decode()
    as_json = (await aenv("template", "logs", "my_root", "-o", "json")).out.splitlines()
    assert json.loads(as_json[0])["message"] == "FROM the uploaded archive"


async def test_a_layout_with_several_images_is_sent_as_an_archive(aenv: Cli, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    made = image([files({"etc/motd": b"text"})], config={"User": "root", "WorkingDir": "/srv"})
    for name, data in oci_layout(made, name="mine:v1").items():
        path = layout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    done = await aenv("pull", str(layout), "--select", "mine:v1", "--name", "of-layout", "--disk", "20480")
    assert (done.code, done.out) == (0, b"of-layout\n"), done.err
    assert json.loads((await aenv("template", "info", "of-layout")).out)["diskSizeMB"] == 20480


async def test_an_interrupt_cancels_the_build(aenv: Cli, server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "slow.tar"
    archive.write_bytes(files({"etc/motd": b"not pulled before"}))
    layers: list[dict[str, int]] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        process = await aenv.start("pull", str(archive), "--name", "slow", "--ready-cmd", "hang")
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"[ready]" not in await process.stderr.readline():
                pass
            build = (await server.request("GET", "/templates/slow/builds")).body[0]["buildID"]
            layers += (await server.request("GET", f"/templates/slow/builds/{build}/layers")).body
            process.send_signal(number)
            said = await process.stderr.read()
            assert await process.wait() == 130
        assert b"cancelling the build" in said
        builds = (await server.request("GET", "/templates/slow/builds")).body
        assert (builds[0]["status"], builds[0]["reason"]) == ("error", "the build was cancelled")
    (layer,) = layers  # the second build had it already
    assert layer["done"] == layer["total"] == archive.stat().st_size
    logs = await aenv("template", "logs", "slow", "-o", "table")
    assert logs.code == 1
    assert "the build failed: the build was cancelled" in logs.err
    assert (await aenv("template", "rm", "slow")).code == 0


async def test_what_fails_says_where(aenv: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"no archive" * 1000)
    done = await aenv("pull", str(broken))
    assert done.code == 1
    assert "error: the build failed at its image: " in done.err
    failed = await aenv("pull", root_archive(tmp_path / "r.tar"), "--start-cmd", "warn oh no && fail 3")
    assert failed.code == 1
    assert "[start] [stderr]: oh no" in failed.err
    assert "failed with exit code 3" in failed.err.splitlines()[-1]
    small = await aenv("pull", str(tmp_path / "r.tar"), "--disk", "64")
    assert "64 is too little" in small.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--registry-user", "me"], "--registry-password-stdin"),
        (["x", "--registry-password-stdin"], "needs --registry-user"),
        (["x", "--registry-user", "me", "--registry-password-stdin"], "no password on standard input"),
        (["x", "--registry-user", "me", "--registry-aws", "eu"], "only one of"),
        (["x", "--registry-aws", "eu"], "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (["x", "--rootfs"], "are for archives"),
        (["./x", "--registry-gcp", "pyproject.toml"], "isn't JSON"),
        (["./nosuch"], "can't be read: No such file"),
        (["/dev/null"], "neither a file nor a folder"),
    ],
)
async def test_what_makes_no_sense_is_refused(aenv: Cli, arguments: list[str], said: str) -> None:
    done = await aenv("pull", *arguments)
    assert done.code in {1, 2}
    assert said in done.err


@pytest.mark.parametrize(
    ("image", "name", "tags"),
    [
        ("python:3.12", "python", ["default", "3.12"]),
        ("localhost:5000/Team/my.app", "my-app", ["default"]),
        ("ghcr.io/a/b:v2@sha256:0000", "b", ["default", "v2"]),
    ],
)
async def test_a_template_is_called_as_its_image(image: str, name: str, tags: list[str]) -> None:
    assert default_name(image, None) == (name, tags)


async def test_without_a_terminal_lines_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_display, "LINE_SECONDS", 0)
    shown = io.StringIO()
    with BuildDisplay(shown) as display:
        done = {"digest": "sha256:1", "done": 1000, "total": 1000}
        display.layers([done, {"digest": "sha256:2", "done": 500, "total": 2000}])
        display.sent("a.tar", 1, 2)
        display.entries([{"message": "evil\x1b[2J", "level": "info"}])
    assert "1 of 2 layers, 1.5 kB of 3.0 kB" in shown.getvalue()
    assert "sending a.tar: 1 B of 2 B" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()
