"""What this host's QEMU can do: its version, and whether KVM really runs a guest here."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import platform
import re
import shutil
from pathlib import Path
from typing import Final

import structlog

from aenv.errors import HostNotReady
from aenv.images.bundle import GuestBundle

log = structlog.get_logger()

BINARY: Final = "qemu-system-x86_64"
_INSTALL: Final = "apt-get install qemu-system-x86"
_OLDEST: Final = (7, 2)
_PROBE_TIMEOUT: Final = 3.0
_KVM_DEVICE: Final = Path("/dev/kvm")


async def find_qemu() -> tuple[str, str]:
    """QEMU's path and version. Raises HostNotReady if it is missing, too old, or for another architecture."""
    if platform.machine() != "x86_64":
        raise HostNotReady(f"the QEMU runtime needs an x86-64 host, this one is {platform.machine()}")
    binary = shutil.which(BINARY)
    if binary is None:
        raise HostNotReady(f"{BINARY} is missing: {_INSTALL}")
    process = await asyncio.create_subprocess_exec(
        binary, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode(errors="replace")
    match = re.search(r"version (\d+)\.(\d+)(?:\.\d+)*", output)
    if match is None:
        raise HostNotReady(f"{binary} --version says {output.strip()!r}: install it again: {_INSTALL}")
    if (int(match[1]), int(match[2])) < _OLDEST:
        raise HostNotReady(f"{binary} is {match[0]}, at least 7.2 is needed: {_INSTALL}")
    return binary, match[0].removeprefix("version ")


async def kvm_works(binary: str, bundle: GuestBundle) -> bool:
    """Whether the bundle's kernel says its first word under KVM within 3 s.

    A `/dev/kvm` that opens proves nothing: under PVM it opens and an ordinary kernel never starts.
    """
    if not _KVM_DEVICE.exists():
        return False
    process = await asyncio.create_subprocess_exec(
        *(binary, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-M", "microvm", "-accel", "kvm", "-cpu", "host", "-m", "128M", "-serial", "stdio"),
        *("-kernel", str(bundle.kernel), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            return b"Linux version" in await process.stdout.readuntil(b"Linux version")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        log.warning("KVM is there but runs no guest", device=str(_KVM_DEVICE), seconds=_PROBE_TIMEOUT)
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def host_cpu() -> str:
    """A short name of this host's CPU model and features, which a guest under KVM depends on."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags")
    fields = sorted(line for line in lines if line.split(":", 1)[0].strip() in wanted)
    return hashlib.sha256("\n".join(fields).encode()).hexdigest()[:12]
