"""The root file system of the `base` template: Debian 12 with what an agent expects, as a raw ext4 image."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from aenv.durable import sync
from aenv.errors import HostNotReady
from aenv.images import basetree, ext4
from aenv.images.apt import KEYRING, AptSettings, host_settings
from aenv.images.commands import run
from aenv.images.locks import exclusive
from aenv.images.progress import Progress
from aenv.images.requirements import require
from aenv.images.scratch import publish, remove_leftovers, scratch_folder

RELEASE = "bookworm"

PACKAGES = (
    "bash",
    "ca-certificates",
    "curl",
    "git",
    "iproute2",
    "iputils-ping",
    "jq",
    "less",
    "netbase",
    "openssh-client",
    "procps",
    "psmisc",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "sudo",
    "unzip",
    "wget",
    "xz-utils",
)

_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/man/*",
)
_USER = 'chroot "$1" useradd --create-home --uid 1000 --user-group --shell /bin/bash user'
_EPOCH = "1672531200"
"""2023-01-01T00:00:00Z: SOURCE_DATE_EPOCH, so that dates in files don't depend on when it was built."""


def base_recipe() -> str:
    """12 hex digits that change whenever `build_base` would make something else but for newer packages."""
    parts = [RELEASE, PACKAGES, _DPKG_OPTIONS, _USER, basetree.RECIPE, ext4.RECIPE]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


async def build_base(target: Path, *, disk_mib: int, progress: Progress) -> None:
    """Make `target`, a sparse raw ext4 image of `disk_mib` MiB, unless it is there already.

    A target that exists is complete and is never replaced: disks of sandboxes are laid over it. Name it by
    `base_recipe()` and the size to follow changes. It may be interrupted at any moment and run several times
    at once. Packages come from the machine's own Debian archives, else from Debian's public mirrors. Must run
    as root.

    Raises HostNotReady if a tool is missing, or the archives can't be reached, or `disk_mib` is too small.
    """
    require("mmdebstrap", "mke2fs", "unshare", "setpriv", str(KEYRING))
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    with progress.step("base root file system") as line:
        async with exclusive(target.parent / "lock", line):
            await asyncio.to_thread(remove_leftovers, target.parent)
            if not await asyncio.to_thread(target.exists):
                await _build(target, disk_mib, line)


async def _build(target: Path, disk_mib: int, line: Callable[[str], None]) -> None:
    settings = await host_settings(RELEASE)
    async with scratch_folder(target.parent) as scratch:
        tree = scratch / "tree"
        await _bootstrap(tree, scratch / "apt.conf", settings, line)
        line("settings and clean-up")
        await asyncio.to_thread(
            basetree.furnish,
            tree,
            sources="".join(f"{source.line(private=False)}\n" for source in settings.sources),
            apt_options="".join(f"{option}\n" for option in settings.date_options),
        )
        line("writing the disk image")
        image = scratch / "image"
        await ext4.make_image(tree, image, size_mib=disk_mib, label="aenv-base")
        await asyncio.to_thread(_finish, image, target)


async def _bootstrap(tree: Path, options: Path, settings: AptSettings, line: Callable[[str], None]) -> None:
    await asyncio.to_thread(options.write_text, "".join(f"{option}\n" for option in settings.options))
    try:
        await run(
            [
                *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"),
                f"--include={','.join(PACKAGES)}",
                *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
                '--aptopt=Acquire::Languages "none"',
                f"--aptopt={options}",
                f"--customize-hook={_USER}",
                *(RELEASE, tree),
                *(source.line(private=True) for source in settings.sources),
            ],
            on_line=line,
            confined=True,
            env={"SOURCE_DATE_EPOCH": _EPOCH},
        )
    except HostNotReady as error:
        raise HostNotReady(
            f"the base root file system can't be made; check that apt-get update works here\n{error.message}"
        ) from error


def _finish(image: Path, target: Path) -> None:
    image.chmod(0o444)
    sync(image)
    publish(image, target)
