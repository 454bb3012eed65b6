"""The guest kernel: the distribution's cloud kernel and the few modules a microVM needs, from its package.

The package is downloaded and unpacked into a scratch folder; it is never installed on the host.
"""

from __future__ import annotations

import asyncio
import gzip
import lzma
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import HostNotReady
from aenv.images.commands import run
from aenv.images.requirements import require

MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
)
"""In the order of loading: each needs those before it. What the kernel has built in is left out."""

_META_PACKAGE = "linux-image-cloud-{architecture}"
_DEPENDENCY = re.compile(r"^\s*Depends: (linux-image-(\S+))$", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """A kernel image and the modules to load, unpacked, as (file name, content) in the order of loading."""

    version: str
    image: Path
    modules: tuple[tuple[str, bytes], ...]


async def fetch_kernel(scratch: Path, on_line: Callable[[str], None]) -> Kernel:
    """Download and unpack the newest cloud kernel that apt knows into `scratch`, an existing folder.

    Raises HostNotReady if apt knows no such package or can't get it.
    """
    architecture = (await run(["dpkg", "--print-architecture"])).strip()
    meta = _META_PACKAGE.format(architecture=architecture)
    try:
        found = _DEPENDENCY.search(await run(["apt-cache", "depends", meta]))
    except HostNotReady:
        found = None
    if found is None:
        raise HostNotReady(
            f"apt doesn't know {meta}: run apt-get update, with a Debian archive among its sources"
        )
    package, version = found.groups()
    on_line(f"downloading {package}")
    try:
        # As root: the scratch folder is private, so apt's own user couldn't write there.
        await run(["apt-get", "--option=APT::Sandbox::User=root", "download", package], cwd=scratch)
    except HostNotReady as error:
        raise HostNotReady(f"{error.message}\nThe package lists may be old: run apt-get update") from error
    archive = await asyncio.to_thread(lambda: next(scratch.glob("*.deb")))
    tree = scratch / "tree"
    on_line(f"unpacking {archive.name}")
    await run(["dpkg-deb", "--extract", archive, tree])
    return await asyncio.to_thread(read_kernel, tree, version)


def read_kernel(tree: Path, version: str) -> Kernel:
    """Find the kernel `version` and its modules in an unpacked package.

    Raises HostNotReady if the package lacks the image or a module that isn't built in.
    """
    image = tree / "boot" / f"vmlinuz-{version}"
    folder = tree / "lib" / "modules" / version
    if not image.is_file() or not folder.is_dir():
        raise HostNotReady(f"the kernel package holds no {image.name} with its modules")
    builtin = {
        _module_name(Path(line)) for line in (folder / "modules.builtin").read_text().splitlines() if line
    }
    files = {_module_name(file): file for file in folder.rglob("*.ko*")}
    modules = []
    for name in MODULES:
        if name in files:
            modules.append((f"{name}.ko", _unpacked(files[name])))
        elif name not in builtin:
            raise HostNotReady(f"kernel {version} has no module {name}, neither built in nor as a file")
    return Kernel(version, image, tuple(modules))


def _module_name(file: Path) -> str:
    return file.name.partition(".ko")[0].replace("-", "_")


def _unpacked(file: Path) -> bytes:
    content = file.read_bytes()
    match file.suffix:
        case ".ko":
            return content
        case ".xz":
            return lzma.decompress(content)
        case ".gz":
            return gzip.decompress(content)
        case ".zst":  # no decoder in Python's library
            require("zstd")
            return subprocess.run(["zstd", "-dc"], input=content, stdout=subprocess.PIPE, check=True).stdout
    raise HostNotReady(f"{file.name} is compressed in a form that isn't supported")
