"""Overlays written directly are what qemu-img itself would call sound, and stack."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aenv.disks.chain import chain
from aenv.disks.qcow2 import create_overlay


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("size", [1 << 20, 10 << 30, (10 << 30) + 512, 5 << 40, 300 << 40])
def test_an_empty_overlay_is_sound(tmp_path: Path, size: int) -> None:
    path = tmp_path / "overlay.qcow2"
    create_overlay(path, size)
    assert path.stat().st_mode & 0o777 == 0o600
    info = json.loads(run("qemu-img", "info", "--output=json", str(path)))
    assert (info["format"], info["virtual-size"]) == ("qcow2", size)
    assert "backing-filename" not in info
    check = json.loads(run("qemu-img", "check", "--output=json", str(path)))
    assert (check["check-errors"], check.get("leaks", 0), check.get("corruptions", 0)) == (0, 0, 0)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "overlay.qcow2"
    path.write_text("x")
    with pytest.raises(FileExistsError):
        create_overlay(path, 1 << 20)
    assert path.read_text() == "x"


def test_a_chain_reads_through_and_writes_on_top(tmp_path: Path) -> None:
    size = 4 << 20
    base = tmp_path / "base.raw"
    base.write_bytes(b"b" * size)
    sealed = [tmp_path / f"{number}.qcow2" for number in range(3)]
    for number, path in enumerate(sealed):
        create_overlay(path, size)
        node = chain("top", path, sealed[:number], base)
        qemu_io(node, f"write -P {number + 1} {number}M 64k")
    top = tmp_path / "top.qcow2"
    create_overlay(top, size)
    before = [path.read_bytes() for path in (base, *sealed)]
    node = chain("top", top, sealed, base)
    for number in range(3):
        assert "verification failed" not in qemu_io(node, f"read -P {number + 1} {number}M 64k")
    assert "verification failed" not in qemu_io(node, "read -P 98 3M 64k")
    qemu_io(node, "write -P 9 0 1M")
    assert "verification failed" not in qemu_io(node, "read -P 9 0 1M")
    assert [path.read_bytes() for path in (base, *sealed)] == before
    assert json.loads(run("qemu-img", "check", "--output=json", str(top)))["check-errors"] == 0


def qemu_io(node: dict[str, object], command: str) -> str:
    """Run one qemu-io command on a described node (which can't be named in this form)."""
    node = {key: value for key, value in node.items() if key != "node-name"}
    return run("qemu-io", "-c", command, f"json:{json.dumps(node)}")
