"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aenv.durable import write_whole
from tests.small_disk import small_disk


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    path.chmod(0o666)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert _mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_is_the_one_asked_for_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "file", b"", mode=0o644)
    finally:
        os.umask(before)
    assert _mode(tmp_path / "file") == 0o644


@pytest.mark.parametrize("survive", [True, False])
def test_what_shall_survive_is_forced_to_the_device_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survive: bool
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        kind = "folder" if target.is_dir() else target.read_bytes().decode()
        synced.append((kind, sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "file", b"content", survive=survive)
    assert synced == ([("content", [".file"]), ("folder", ["file"])] if survive else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="it mounts")
def test_a_full_disk_keeps_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as folder:
        path = folder / "file"
        write_whole(path, b"old")
        with pytest.raises(OSError, match="No space") as failure:
            write_whole(path, bytes(2 << 20))
        assert failure.value.errno == errno.ENOSPC
        assert path.read_bytes() == b"old"
        assert list(folder.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", b"")
