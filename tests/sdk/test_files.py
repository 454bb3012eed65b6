"""Files, through the Python SDK."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
)

from tests.sdk.client import Client, eventually

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]

UPLOADS = {
    "multipart": {"use_octet_stream": False},
    "octet-stream": {"use_octet_stream": True},
    "gzip": {"gzip": True},
}

ODD_NAMES = {
    "longest": "n" * 255,
    "longest in bytes": "ü" * 127 + "x",
    "newline": "a\nb\r\n",
    "unicode": "naïve 日本語 🚀 e\u0301",
    "leading dash": "-rf",
    "spaces": " a  b ",
    "quotes": "'\"`\\\\n",
    "url": "a+b&c=d#e?f%41%2F",
    "shell": "$(id);*[!]{}|<>~",
    "dots": "...",
    "control": "\x01\x1f\t",
}


@pytest.mark.parametrize("upload", UPLOADS)
@pytest.mark.parametrize("content", ["", "täxt\n", bytes(range(256)) * 700], ids=["empty", "text", "bytes"])
def test_what_is_written_is_read_again(sandbox: Any, upload: str, content: str | bytes) -> None:
    path = f"/home/user/{upload}/file"
    written = sandbox.files.write(path, content, **UPLOADS[upload])
    assert (written.name, written.path, written.type) == ("file", path, FileType.FILE)
    raw = content.encode() if isinstance(content, str) else content
    for gzip in (False, True):
        assert bytes(sandbox.files.read(path, format="bytes", gzip=gzip)) == raw
        assert b"".join(sandbox.files.read(path, format="stream", gzip=gzip)) == raw
        if isinstance(content, str):
            assert sandbox.files.read(path, gzip=gzip) == content
    assert sandbox.files.get_info(path).size == len(raw)


@pytest.mark.parametrize("gzip", [False, True])
def test_a_stream_is_sent_in_chunks(client: Client, sandbox: Any, gzip: bool) -> None:
    chunks = [bytes([number]) * 65_536 for number in range(64)]

    sandbox.files.write("streamed", client.stream(chunks), gzip=gzip)
    assert bytes(sandbox.files.read("streamed", format="bytes")) == b"".join(chunks)
    sandbox.files.write("streamed", io.BytesIO(b"".join(chunks)), gzip=gzip)
    assert bytes(sandbox.files.read("streamed", format="bytes")) == b"".join(chunks)
    sandbox.files.write("streamed", io.StringIO("täxt"), gzip=gzip)
    assert sandbox.files.read("streamed") == "täxt"


def test_an_upload_that_breaks_off_leaves_no_file(client: Client, sandbox: Any) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"x" * 300_000
        raise OSError("the source is gone")

    with pytest.raises(Exception, match="the source is gone"):
        sandbox.files.write("half", client.stream(breaks()))
    eventually(lambda: not sandbox.files.exists("half"))


@pytest.mark.parametrize("upload", UPLOADS)
@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_odd_names(sandbox: Any, name: str, upload: str) -> None:
    folder = f"/home/user/odd {upload}"
    path = f"{folder}/{name}"
    assert sandbox.files.write(path, "content", **UPLOADS[upload]).path == path
    assert sandbox.files.read(path) == "content"
    assert sandbox.files.exists(path)
    assert sandbox.files.get_info(path).name == name
    assert [entry.name for entry in sandbox.files.list(folder)] == [name]
    moved = sandbox.files.rename(path, f"{folder}/x")
    assert moved.path == f"{folder}/x"
    assert sandbox.files.rename(f"{folder}/x", path).path == path
    sandbox.files.remove(path)
    assert not sandbox.files.exists(path)


def test_names_that_are_too_long_are_refused(sandbox: Any) -> None:
    for path in ("n" * 256, "/".join(["n" * 200] * 25)):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write(path, "x")
        with pytest.raises(InvalidArgumentException):
            sandbox.files.make_dir(path)


def test_many_files_at_once(sandbox: Any) -> None:
    names = ["plain", "in/a/folder", "spaces and ü/日本", "/tmp/absolute", "~/home"]
    for options in UPLOADS.values():
        files = [{"path": name, "data": f"content of {name}"} for name in names]
        written = sandbox.files.write_files(files, **options)
        assert [entry.path for entry in written] == [
            "/home/user/plain",
            "/home/user/in/a/folder",
            "/home/user/spaces and ü/日本",
            "/tmp/absolute",
            "/home/user/home",
        ]
        for name in names:
            assert sandbox.files.read(name) == f"content of {name}"
    assert sandbox.files.write_files([]) == []


def test_users_groups_and_permissions(sandbox: Any) -> None:
    sandbox.files.write("owned/file", "x")
    info = sandbox.files.get_info("owned/file")
    assert (info.owner, info.group, info.mode, info.permissions) == ("user", "user", 0o644, "-rw-r--r--")
    folder = sandbox.files.get_info("owned")
    assert (folder.type, folder.owner, folder.permissions) == (FileType.DIR, "user", "drwxr-xr-x")

    assert sandbox.files.write("file", "x", user="root").path == "/root/file"
    assert sandbox.files.get_info("/root/file").owner == "root"
    assert sandbox.files.read("~root/file") == "x"
    assert sandbox.files.read("~/owned/file") == sandbox.files.read("~user/owned/file") == "x"
    assert sandbox.files.make_dir("made", user="root")
    assert sandbox.files.get_info("/root/made").group == "root"

    sandbox.commands.run("chown nobody:games /root/file; chmod 4750 /root/file", user="root")
    info = sandbox.files.get_info("/root/file")
    assert (info.owner, info.group, info.mode) == ("nobody", "games", 0o750)
    sandbox.commands.run("chown 4242:4243 /root/file", user="root")
    info = sandbox.files.get_info("/root/file")
    assert (info.owner, info.group) == ("4242", "4243")
    with pytest.raises(AuthenticationException):
        sandbox.files.write("x", "x", user="nobody-knows-him")
    with pytest.raises(AuthenticationException):
        sandbox.files.list(".", user="nobody-knows-him")


def test_symlinks(sandbox: Any) -> None:
    sandbox.commands.run(
        "mkdir -p real; echo -n x > real/file; ln -s real way; ln -s real/file link; ln -s none dangling"
    )
    info = sandbox.files.get_info("link")
    assert (info.type, info.symlink_target) == (FileType.SYMLINK, "/home/user/real/file")
    assert info.permissions.startswith("L")
    assert [entry.path for entry in sandbox.files.list("way")] == ["/home/user/way/file"]
    assert sandbox.files.exists("dangling")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("dangling")
    sandbox.files.write("link", "through")
    assert sandbox.files.read("real/file") == "through"
    assert sandbox.files.get_info("link").symlink_target == "/home/user/real/file"
    sandbox.files.remove("way")
    assert sandbox.files.exists("real/file")


def test_metadata_goes_with_the_file(sandbox: Any) -> None:
    for options in UPLOADS.values():
        metadata = {"source": "unit test", "n": "1"}
        assert sandbox.files.write("tagged/file", "x", metadata=metadata, **options).metadata == metadata
        assert sandbox.files.get_info("tagged/file").metadata == metadata
        assert sandbox.files.list("tagged")[0].metadata == metadata
        assert sandbox.files.rename("tagged/file", "tagged/moved").metadata == metadata
        assert sandbox.files.rename("tagged/moved", "tagged/file").metadata == metadata
        sandbox.files.write("tagged/file", "x", metadata={"other": "2"}, **options)
        assert sandbox.files.get_info("tagged/file").metadata == {"other": "2"}
        sandbox.files.write("tagged/file", "x", **options)
        assert not sandbox.files.get_info("tagged/file").metadata


def test_folders(sandbox: Any) -> None:
    assert sandbox.files.make_dir("deep/er/est")
    assert not sandbox.files.make_dir("deep/er")
    sandbox.files.write("deep/a", "x")
    sandbox.files.write("deep/er/b", "x")
    assert [entry.name for entry in sandbox.files.list("deep")] == ["a", "er"]
    paths = [entry.path for entry in sandbox.files.list("deep", depth=3)]
    assert [path.removeprefix("/home/user/deep/") for path in paths] == ["a", "er", "er/b", "er/est"]
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("deep", depth=0)
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("deep/a")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir("deep/a")
    with pytest.raises(NotFoundException):
        sandbox.files.list("deep/none")
    sandbox.files.remove("deep")
    assert not sandbox.files.exists("deep")
    sandbox.files.remove("deep")


def test_what_is_no_file_is_refused(sandbox: Any) -> None:
    sandbox.commands.run("mkdir -p folder; mkfifo pipe")
    for path in ("folder", "pipe", "/dev/zero"):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.read(path)
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write(path, "x")
    for missing in (sandbox.files.read, sandbox.files.get_info):
        with pytest.raises(FileNotFoundException):
            missing("no/such/file")
    assert "Linux" in sandbox.files.read("/proc/version")


def test_a_move_between_file_systems(sandbox: Any) -> None:
    sandbox.commands.run("mkdir -p moving/inner; echo -n x > moving/inner/file; chmod 600 moving/inner/file")
    assert sandbox.files.rename("moving", "/dev/shm/new/moved").path == "/dev/shm/new/moved"
    assert sandbox.files.read("/dev/shm/new/moved/inner/file") == "x"
    assert sandbox.files.get_info("/dev/shm/new/moved/inner/file").permissions == "-rw-------"
    assert not sandbox.files.exists("moving")
    with pytest.raises(NotFoundException):
        sandbox.files.rename("no-such", "x")
    sandbox.files.remove("/dev/shm/new")


def test_a_full_disk_is_said(client: Client, sandbox: Any) -> None:
    sandbox.commands.run("mkdir -p /mnt/small; mount -t tmpfs -o size=1m none /mnt/small", user="root")
    for options in UPLOADS.values():
        with pytest.raises(Exception, match="not enough disk space"):
            sandbox.files.write("/mnt/small/big", bytes(range(256)) * 20_000, **options)
        assert not sandbox.files.exists("/mnt/small/big")
    sandbox.commands.run("umount /mnt/small", user="root")
