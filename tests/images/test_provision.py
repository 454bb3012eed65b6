"""What sandboxes need is added to any image, and what an image has is left."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aenv.disks.edits import EditRefused
from aenv.images.provision import provision

USER = "user:x:1000:1000::/home/user:/bin/sh"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of an image without any file."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def run(root: Path) -> None:
    provision(lambda _line: None, root)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def modes(root: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}


def test_an_image_without_any_file(root: Path) -> None:
    (root / "lost+found").mkdir()
    run(root)
    assert modes(root) == {
        "dev": 0o755,
        "etc": 0o755,
        "home": 0o755,
        "proc": 0o555,
        "root": 0o700,
        "run": 0o755,
        "sys": 0o555,
        "tmp": 0o1777,
    }
    assert (root / "etc/passwd").read_text() == f"root:x:0:0:root:/root:/bin/sh\n{USER}\n"
    assert (root / "etc/group").read_text() == "root:x:0:\nuser:x:1000:\n"
    assert (root / "etc/hostname").read_text() == "sandbox\n"
    assert "127.0.0.1 localhost" in (root / "etc/hosts").read_text()
    assert (root / "etc/resolv.conf").read_text() == ""
    assert not (root / "etc/shadow").exists()
    home = (root / "home/user").stat()
    assert (home.st_uid, home.st_gid, stat.S_IMODE(home.st_mode)) == (1000, 1000, 0o755)


def test_twice_is_as_once(root: Path) -> None:
    run(root)
    before = {path: path.read_bytes() for path in (root / "etc").iterdir()}
    run(root)
    assert {path: path.read_bytes() for path in (root / "etc").iterdir()} == before


def test_accounts_of_the_image_are_kept(root: Path) -> None:
    write(root / "etc/passwd", "root:x:0:0::/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/sh")
    write(root / "etc/group", "root:x:0:root\nnode:x:1000:\nstaff:x:1001:\n")
    write(root / "etc/shadow", "root:*::0:::::\n", 0o640)
    write(root / "etc/gshadow", "root:*::\n", 0o600)
    os.chown(root / "etc/shadow", 0, 42)
    write(root / "bin/bash", "")
    run(root)
    assert (root / "etc/passwd").read_text() == (
        "root:x:0:0::/root:/bin/ash\n"
        "node:x:1000:1000::/home/node:/bin/sh\n"
        "user:x:1002:1002::/home/user:/bin/bash\n"
    )
    assert (root / "etc/group").read_text().endswith("staff:x:1001:\nuser:x:1002:\n")
    assert (root / "etc/shadow").read_text() == "root:*::0:::::\nuser:!:19000:0:99999:7:::\n"
    assert (root / "etc/gshadow").read_text() == "root:*::\nuser:!::\n"
    found = (root / "etc/shadow").stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (42, 0o640)
    assert (root / "home/user").stat().st_uid == 1002


def test_a_user_that_is_there_is_left(root: Path) -> None:
    write(root / "etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:500:500::/srv:/bin/sh\n")
    write(root / "etc/hosts", "10.0.0.1 mine\n")
    run(root)
    assert (root / "etc/passwd").read_text().count("user:") == 1
    assert not (root / "home").exists()
    assert (root / "etc/hosts").read_text() == "10.0.0.1 mine\n"


def test_a_home_begins_with_the_skeleton(root: Path) -> None:
    write(root / "etc/skel/.profile", "hello", 0o640)
    (root / "etc/skel/link").symlink_to("/etc/passwd")
    run(root)
    assert [path.name for path in (root / "home/user").iterdir()] == [".profile"]
    found = (root / "home/user/.profile").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (1000, 0o640)


@pytest.mark.parametrize("has_sudo", [True, False])
def test_sudo_is_allowed_where_it_is(root: Path, has_sudo: bool) -> None:
    (root / "etc/sudoers.d").mkdir(parents=True)
    if has_sudo:
        write(root / "usr/bin/sudo", "", 0o4755)
    run(root)
    assert (root / "etc/sudoers.d/user").exists() == has_sudo


def test_links_in_the_place_of_folders_and_files(root: Path) -> None:
    (root / "var/run").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "run").symlink_to("var/run")
    (root / "tmp").symlink_to("nowhere")
    (root / "etc/resolv.conf").symlink_to("nowhere/resolv.conf")
    write(root / "store/passwd", "root:x:0:0::/root:/bin/sh\n")
    (root / "etc/passwd").symlink_to("../store/passwd")
    run(root)
    assert (root / "run").is_symlink()
    assert not (root / "tmp").is_symlink()
    assert (root / "etc/resolv.conf").read_text() == ""
    assert USER in (root / "etc/passwd").read_text()
    assert USER not in (root / "store/passwd").read_text()


@pytest.mark.parametrize("path", ["etc", "tmp", "home", "etc/passwd", "etc/hosts"])
def test_something_else_in_their_place_is_refused(root: Path, path: str) -> None:
    if path == "etc/passwd":
        (root / path).mkdir(parents=True)
    elif path == "etc/hosts":
        (root / "etc").mkdir()
        os.mkfifo(root / path)
    else:
        write(root / path, "a file")
    with pytest.raises(EditRefused, match=f"{path} is no"):
        run(root)


def test_names_that_are_not_utf8_are_kept(root: Path) -> None:
    write(root / "etc/passwd", "")
    (root / "etc/passwd").write_bytes(b"root:x:0:0:\xff\xfe:/root:/bin/sh\n")
    run(root)
    assert (root / "etc/passwd").read_bytes().startswith(b"root:x:0:0:\xff\xfe:/root:/bin/sh\n")
