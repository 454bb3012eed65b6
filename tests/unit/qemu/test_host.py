"""What is missing on a host is said with its remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.errors import HostNotReady
from aenv.runtimes.qemu.host import find_qemu
from aenv.runtimes.qemu.process import VmProcess
from aenv.runtimes.qemu.tsc import measure_tsc_khz


def fake_qemu(folder: Path, output: str) -> None:
    script = folder / "qemu-system-x86_64"
    script.write_text(f"#!/bin/sh\necho '{output}'\n")
    script.chmod(0o755)


async def test_a_missing_qemu_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostNotReady, match=r"missing: apt-get install qemu-system-x86"):
        await find_qemu()


@pytest.mark.parametrize(
    ("output", "words"),
    [("QEMU emulator version 6.2.0 (x)", "at least 7.2"), ("no idea", "no idea"), ("", "says ''")],
)
async def test_an_unfit_qemu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, words: str
) -> None:
    fake_qemu(tmp_path, output)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(HostNotReady, match=words):
        await find_qemu()


async def test_newer_versions_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qemu(tmp_path, "QEMU emulator version 10.0.2 (Debian)")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert await find_qemu() == (str(tmp_path / "qemu-system-x86_64"), "10.0.2")


def test_the_tsc_is_measured_the_same_twice() -> None:
    first, second = measure_tsc_khz(), measure_tsc_khz()
    assert abs(first - second) <= first * 100e-6
    assert 500_000 < first < 10_000_000


async def test_a_process_is_started_asked_and_ended(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)  # longer than an address of a socket may be
    deep.mkdir(parents=True)
    command = ["qemu-system-x86_64", "-M", "none", "-nodefaults", "-display", "none"]
    process = await VmProcess.start(command, deep, ())
    answer = await process.execute("query-status")
    assert isinstance(answer, dict)
    await process.stop()
    await process.stop()
    assert process.ended.result() == "it was stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
