"""The cpio writer makes archives that the cpio tool reads, equal for equal content."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aenv.images.cpio import CpioWriter


def sample() -> bytes:
    archive = CpioWriter()
    archive.directory("dev")
    archive.character_device("dev/console", 5, 1)
    archive.directory("folder", mode=0o700)
    archive.file("folder/run", b"#!", mode=0o755)
    for size in range(6):
        archive.file(f"folder/{'x' * size}f", b"abcdef"[:size])
    return archive.finish()


def test_equal_content_gives_equal_bytes_in_whole_words() -> None:
    assert sample() == sample()
    assert len(sample()) % 4 == 0


@pytest.mark.skipif(shutil.which("cpio") is None, reason="the cpio tool is not installed")
def test_the_cpio_tool_unpacks_what_was_written(tmp_path: Path) -> None:
    done = subprocess.run(
        ["cpio", "--extract", "--quiet"], input=sample(), cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stderr == b""
    assert (tmp_path / "dev/console").is_char_device()
    assert (tmp_path / "folder").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "folder/run").stat().st_mode & 0o7777 == 0o755
    for size in range(6):
        assert (tmp_path / f"folder/{'x' * size}f").read_bytes() == b"abcdef"[:size]
