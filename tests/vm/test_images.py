"""Images that have next to nothing boot: the agent needs none of their programs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aenv.database import Database
from aenv.guest.client import EnvdClient
from aenv.guest.events import End, Stderr, Stdout
from aenv.images.bundle import GuestBundle
from aenv.images.convert import Converter
from aenv.images.models import LayerBlob
from aenv.runtimes.base import BootSpec, Capture, Resources
from aenv.snapshots.captures import Captures
from aenv.snapshots.disk_cache import DiskCache
from tests.images.builder import archive, digest_of, entry
from tests.server import STATE
from tests.vm.support import DISK_MIB, MEMORY_MIB, Lab

pytestmark = [pytest.mark.vm, pytest.mark.timeout(400)]

_BOOT = 150.0  # seconds, on a busy machine


@pytest.fixture
async def lab(parts: tuple[GuestBundle, Path], vm_folder: Path, nothing_left: None) -> AsyncIterator[Lab]:
    """An empty laboratory, for which nothing was booted before."""
    folder = Path(tempfile.mkdtemp(dir=vm_folder))
    laboratory = await Lab.open(folder, parts[0], "auto")
    try:
        yield laboratory
    finally:
        await laboratory.close()
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Local:
    """An image whose layers are here."""

    blobs: tuple[LayerBlob, ...]
    reference: str = "test"

    @property
    def diff_ids(self) -> Sequence[str]:
        return [blob.diff_id for blob in self.blobs]

    def begin(self, start: int = 0) -> None:
        assert start <= len(self.blobs)

    async def layer(self, index: int) -> LayerBlob:
        return self.blobs[index]


def busybox() -> bytes:
    program = shutil.which("busybox") or str(STATE / "busybox-static/bin/busybox")
    return Path(program).read_bytes()


async def converted(lab: Lab, *layers: bytes) -> Capture:
    """The disk of an image of these archives."""
    folder = lab.new_folder()
    blobs = []
    for number, layer in enumerate(layers):
        path = folder / str(number)
        path.write_bytes(layer)
        blobs.append(LayerBlob(digest_of(layer), digest_of(layer), len(layer), "none", path))
    (folder / "captures").mkdir()
    database = await Database.open(folder / "aenv.db")
    try:
        captures = Captures(database, folder, folder / "captures")
        disks = DiskCache(database, captures, folder, 1 << 30)
        with contextlib.ExitStack() as keep:
            converter = Converter(lab.runtime, disks, DISK_MIB)
            made = await converter.convert(Local(tuple(blobs)), keep, say=lambda _line: None)
            return made.capture
    finally:
        await database.close()


@asynccontextmanager
async def booted(lab: Lab, capture: Capture) -> AsyncIterator[EnvdClient]:
    """The agent of a VM with this disk, for `user`."""
    resources = Resources(1, MEMORY_MIB, DISK_MIB)
    instance = await lab.runtime.boot(BootSpec(capture, resources), await lab.place())
    lab.own(instance)
    async with EnvdClient(f"http://{instance.place.slot.host_address}:49983", user="user") as envd:
        await envd.wait_healthy(_BOOT)
        yield envd


async def run(envd: EnvdClient, *command: str, user: str | None = None) -> str:
    """What a program says."""
    said = bytearray()
    async with (
        asyncio.timeout(_BOOT),
        await envd.processes.start(command[0], command[1:], user=user) as stream,
    ):
        async for event in stream:
            match event:
                case Stdout(data) | Stderr(data):
                    said += data
                case End(exit_code=code):
                    assert code == 0, said.decode()
                    return said.decode()
                case _:
                    pass
    raise AssertionError("it was never reported ended")


async def test_an_image_of_one_program(lab: Lab) -> None:
    """No shell, no accounts, no folders."""
    capture = await converted(lab, archive([entry("busybox", busybox(), mode=0o755)]))
    async with booted(lab, capture) as envd:
        assert await run(envd, "/busybox", "id") == "uid=1000(user) gid=1000(user)\n"
        assert (await run(envd, "/busybox", "id", "-u", user="root")).strip() == "0"
        await run(envd, "/busybox", "touch", "/home/user/mine", "/tmp/too")
        assert await run(envd, "/busybox", "stat", "-c", "%U %a", "/home/user/mine") == "user 644\n"
        assert "nameserver" in await run(envd, "/busybox", "cat", "/etc/resolv.conf")
        assert "localhost" in await run(envd, "/busybox", "cat", "/etc/hosts")


@pytest.mark.long
async def test_an_image_without_any_file(lab: Lab) -> None:
    async with booted(lab, await converted(lab)) as envd:
        await envd.files.write("/home/user/file", b"content")
        assert b"".join([piece async for piece in envd.files.read("/home/user/file")]) == b"content"


@pytest.mark.long
async def test_an_image_like_alpine(lab: Lab) -> None:
    """Accounts of its own, programs that are links, several layers, and a setuid program."""
    lower = archive(
        [
            entry("bin/busybox", busybox(), mode=0o755),
            entry("bin/bbsuid", busybox(), mode=0o4111),
            *(
                entry(f"bin/{name}", kind=tarfile.SYMTYPE, link="/bin/busybox")
                for name in ("sh", "ls", "id", "cat")
            ),
            entry(
                "etc/passwd",
                b"root:x:0:0:root:/root:/bin/ash\nguest:x:405:100:guest:/dev/null:/sbin/nologin\n",
            ),
            entry("etc/group", b"root:x:0:root\nusers:x:100:games\n"),
            entry("etc/shadow", b"root:*::0:::::\n", mode=0o640, owner=(0, 42)),
            entry("etc/hostname", b"alpine\n"),
            entry("etc/gone", b""),
            entry("var/run", kind=tarfile.SYMTYPE, link="/run"),
        ]
    )
    upper = archive(
        [entry("etc/.wh.gone"), entry("srv/.wh..wh..opq"), entry("srv/data", b"data", owner=(405, 100))]
    )
    async with booted(lab, await converted(lab, lower, upper)) as envd:
        script = "id -un; cat /etc/hostname; ls /etc/gone 2>&1; cat /srv/data; ls -l /srv/data /bin/bbsuid"
        said = (await run(envd, "/bin/sh", "-c", f"{script}; ls -d /var/run/lock")).splitlines()
        assert said[:2] == ["user", "alpine"]
        assert "No such file" in said[2]
        assert said[3].startswith("data")
        assert any("guest" in line and "users" in line for line in said)
        assert any(line.startswith(("---s--x--x", "data---s--x--x")) for line in said)
        assert said[-1] == "/var/run/lock"
