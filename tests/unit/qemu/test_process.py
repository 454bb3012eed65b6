"""What QEMU's events mean for a VM."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator

import pytest

from aenv.runtimes.qemu.process import VmProcess


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """A process that stands for QEMU; it is ended with the one below."""
    return subprocess.Popen(["/bin/sleep", "600"])


@pytest.fixture
async def process(child: subprocess.Popen[bytes]) -> AsyncIterator[VmProcess]:
    """It as a VM's."""
    process = VmProcess(child.pid, os.pidfd_open(child.pid), None, child)
    yield process
    await process.stop()


async def test_a_vm_without_space_stands_still_and_has_not_ended(process: VmProcess) -> None:
    process._on_event("BLOCK_IO_ERROR", {"action": "stop", "nospace": True, "operation": "write"})
    assert process.no_space.is_set()
    assert not process.ended.done()


async def test_a_guest_that_was_told_of_errors_runs_on(
    process: VmProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"action": "report", "operation": "write", "reason": "Input/output error"}
    for _ in range(100):
        process._on_event("BLOCK_IO_ERROR", error)
    assert not process.no_space.is_set()
    assert not process.ended.done()
    assert capsys.readouterr().out.count("Input/output error") == 1
    process._quiet_until = 0.0
    process._on_event("BLOCK_IO_ERROR", error)
    assert "errors=101" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("event", "data", "reason"),
    [
        ("GUEST_PANICKED", {}, "panicked"),
        ("SHUTDOWN", {"guest": True, "reason": "guest-shutdown"}, "powered off"),
        ("SHUTDOWN", {"guest": True, "reason": "guest-reset"}, "crashed or restarted"),
    ],
)
async def test_a_guest_that_ends_is_the_end(
    process: VmProcess, event: str, data: dict[str, object], reason: str
) -> None:
    process._on_event(event, data)
    assert reason in await process.ended
