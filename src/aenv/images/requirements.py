"""The host's tools that this program calls, and the Debian packages that have them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from aenv.errors import HostNotReady

TOOLS = MappingProxyType(
    {
        "qemu-system-x86_64": "qemu-system-x86",
        "qemu-storage-daemon": "qemu-system-common",
        "qemu-img": "qemu-utils",
        "mmdebstrap": "mmdebstrap",
        "mke2fs": "e2fsprogs",
        "resize2fs": "e2fsprogs",
        "dpkg-deb": "dpkg",
        "apt-get": "apt",
        "nft": "nftables",
        "ip": "iproute2",
        "unshare": "util-linux",
        "setpriv": "util-linux",
        "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    }
)
"""Command name, or absolute path of a file → Debian package. All of these are always needed."""

OPTIONAL_TOOLS = MappingProxyType({"zstd": "zstd"})
"""The same for what only some hosts need."""

_PACKAGES = {**TOOLS, **OPTIONAL_TOOLS}

_ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Missing:
    """A tool that isn't there, and the package that brings it."""

    tool: str
    package: str


def missing(tools: Iterable[str] = TOOLS) -> list[Missing]:
    """Those of `tools` (of `TOOLS` or `OPTIONAL_TOOLS`) that the host lacks."""
    return [Missing(tool, _PACKAGES[tool]) for tool in tools if not _present(tool)]


def require(*tools: str) -> None:
    """Raise HostNotReady that says what to install if one of `tools` (all if none is named) is missing."""
    lacking = missing(tools or TOOLS)
    if lacking:
        names = ", ".join(item.tool for item in lacking)
        packages = " ".join(dict.fromkeys(item.package for item in lacking))
        verb = "is" if len(lacking) == 1 else "are"
        raise HostNotReady(f"{names} {verb} missing: apt-get install {packages}")


def _present(tool: str) -> bool:
    if tool.startswith("/"):
        return Path(tool).exists()
    return shutil.which(tool, path=search_path()) is not None


def search_path() -> str:
    """`PATH` with the folders of administration tools, which an ordinary user's `PATH` lacks."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*folders, *(folder for folder in _ADMIN_FOLDERS if folder not in folders)])
