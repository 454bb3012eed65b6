"""The parts of the base root file system that need no archive: settings, clean-up and the disk image."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aenv.errors import HostNotReady
from aenv.images import basetree
from aenv.images.debian import base_recipe
from aenv.images.ext4 import make_image
from aenv.images.requirements import search_path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="keeps owners, which only root can")

FOLDERS = (
    "etc/skel",
    "etc/sudoers.d",
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "root",
    "home/user",
    "var/log/apt",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial",
    "tmp",
    "run",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name in FOLDERS:
        (tree / name).mkdir(parents=True)
    (tree / "etc/apt/apt.conf.d/99mmdebstrap").write_text('Acquire::http::Proxy "http://me:secret@proxy";')
    (tree / "etc/apt/sources.list.d/0000x.list").write_text("deb http://me:secret@mirror bookworm main")
    (tree / "var/log/apt/term.log").write_text("log")
    (tree / "etc/resolv.conf").symlink_to("/etc/hosts")
    return tree


def test_no_secret_log_or_host_setting_is_left(tree: Path) -> None:
    basetree.furnish(tree, sources="deb http://mirror bookworm main\n", apt_options="")
    content = subprocess.run(["grep", "-rl", "secret", tree], capture_output=True, check=False).stdout
    assert content == b""
    assert (tree / "etc/apt/sources.list").read_text() == "deb http://mirror bookworm main\n"
    assert (tree / "var/log/apt").is_dir(), "apt fails without it"
    assert list((tree / "var/log/apt").iterdir()) == []
    assert not (tree / "etc/resolv.conf").is_symlink()
    assert Path("/etc/hosts").stat().st_size > 0
    assert (tree / "home/user/.profile").stat().st_uid == 1000
    assert (tree / "etc/sudoers.d/user").stat().st_mode & 0o777 == 0o440


def test_a_login_shell_starts_no_process(tree: Path) -> None:
    basetree.furnish(tree, sources="", apt_options="")
    script = f'PATH=/nowhere; . {tree}/etc/profile && . {tree}/home/user/.profile && echo "$PATH"'
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", script],
        env={"HOME": str(tree / "home/user")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "", "a command of a profile was looked for on PATH"
    assert done.stdout == f"{tree}/home/user/.local/bin:/nowhere\n"


async def test_an_image_is_sparse_clean_and_has_nothing_left_to_initialise(
    tree: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    await make_image(tree, image, size_mib=2048, label="test")
    check_image(image)


def check_image(image: Path) -> None:
    assert image.stat().st_size == 2048 << 20
    assert image.stat().st_blocks * 512 < 64 << 20
    tool_output("e2fsck", "-fn", image)
    assert tool_output("dumpe2fs", image).count("ITABLE_ZEROED") == 2048 // 128
    assert "term.log" in tool_output("debugfs", "-R", "ls /var/log/apt", image)


def tool_output(*command: str | Path) -> str:
    environment = {**os.environ, "PATH": search_path()}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


async def test_a_tree_that_does_not_fit_is_a_clear_error(tree: Path, tmp_path: Path) -> None:
    (tree / "big").write_bytes(os.urandom(40 << 20))
    with pytest.raises(HostNotReady, match="mke2fs failed"):
        await make_image(tree, tmp_path / "image", size_mib=32, label="test")


def test_the_recipe_is_stable() -> None:
    assert base_recipe() == base_recipe()
    assert len(base_recipe()) == 12
