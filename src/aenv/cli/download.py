"""Copying from a sandbox to here."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from aenv.cli.errors import CommandError, say
from aenv.cli.parallel import each
from aenv.cli.progress import Meter
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from aenv.guest.files import Entry

AT_ONCE = 4
"""Files in transfer at the same time."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to copy and where it goes."""

    source: str
    target: Path
    size: int
    mode: int


@dataclass
class Plan:
    """All that a copy consists of: folders, parents first; files; and what is left out."""

    folders: list[Path] = field(default_factory=list)
    files: list[RemoteFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


async def download(envd: EnvdClient, source: str, destination: str) -> Meter:
    """Copy the file or folder `source` of a sandbox to `destination` here.

    Raises CommandError, OSError for what can't be written here, and envd's errors.
    """
    try:
        entry = await envd.files.stat(source)
    except GuestError as error:
        if error.code is Code.NOT_FOUND:
            raise CommandError(f"{source} doesn't exist in the sandbox") from error
        raise
    target = await asyncio.to_thread(_target, entry, source, destination)
    plan = await plan_download(envd, entry, source, target)
    for skipped in plan.left_out:
        say(f"left out {skipped}: not a regular file")
    with Meter(sum(file.size for file in plan.files)) as meter:
        for folder in plan.folders:
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
        await each(plan.files, AT_ONCE, lambda file: _fetch(envd, file, meter))
    return meter


async def plan_download(envd: EnvdClient, entry: Entry, source: str, target: Path) -> Plan:
    """Find everything under `source`, which becomes `target`."""
    plan = Plan()
    if not entry.is_dir:
        plan.files.append(RemoteFile(source, target, entry.size, entry.mode))
        return plan
    open_folders = [(source, target)]
    while open_folders:
        folder, here = open_folders.pop()
        plan.folders.append(here)
        for found in await envd.files.list_dir(folder):
            path = str(PurePosixPath(folder) / checked_name(found.name))
            if found.symlink_target is not None or not (found.is_dir or found.is_file):
                plan.left_out.append(path)
            elif found.is_dir:
                open_folders.append((path, here / found.name))
            else:
                plan.files.append(RemoteFile(path, here / found.name, found.size, found.mode))
    return plan


def checked_name(name: str) -> str:
    """A name that a sandbox gave, if it can't lead out of the folder it is put into."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise CommandError(f"the sandbox named a file {name!r}, which isn't a file's name")
    return name


def _target(entry: Entry, source: str, destination: str) -> Path:
    """What `source` is called here, by the rules of cp."""
    path = Path(destination)
    if path.is_dir():
        contents_only = entry.is_dir and (entry.path == "/" or f"/{source.rstrip('/')}".endswith("/."))
        return path if contents_only else path / checked_name(entry.name)
    if path.exists() and entry.is_dir:
        raise CommandError(f"{destination} is a file, {source} in the sandbox a folder")
    if destination.endswith("/") and not entry.is_dir:
        raise CommandError(f"the folder {destination} doesn't exist")
    if not path.parent.is_dir():
        raise CommandError(f"the folder {path.parent} doesn't exist")
    return path


async def _fetch(envd: EnvdClient, file: RemoteFile, meter: Meter) -> None:
    """Stream one file into a hidden one beside its place, then put it there in one step."""
    partial = file.target.with_name(f".{file.target.name[:200]}.{os.getpid()}.part")
    opened = await asyncio.to_thread(partial.open, "xb")
    try:
        async with aclosing(envd.files.read(file.source)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(opened.write, chunk)
                meter.add(file.target.name, len(chunk))
        opened.close()
        partial.chmod(file.mode & 0o777)
        partial.replace(file.target)
    finally:
        opened.close()
        partial.unlink(missing_ok=True)
    meter.files += 1
