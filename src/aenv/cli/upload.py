"""Copying from here into a sandbox."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from aenv.cli.errors import CommandError, say
from aenv.cli.parallel import each
from aenv.cli.progress import Meter
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from aenv.guest.events import End
from aenv.guest.files import CHUNK

AT_ONCE = 4
"""Files in transfer at the same time."""
_CHMOD_BATCH = 100


@dataclass(frozen=True)
class LocalFile:
    """A file to copy and where it goes."""

    source: Path
    target: str
    size: int
    executable: bool


@dataclass
class Plan:
    """All that a copy consists of: files, folders that no file brings along, and what is left out."""

    files: list[LocalFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


async def upload(envd: EnvdClient, source: str, destination: str) -> Meter:
    """Copy the file or folder `source` to `destination`.

    Raises CommandError, OSError for what can't be read here, and envd's errors.
    """
    path = Path(source)
    target = await _target(envd, path, source, destination)
    plan = await asyncio.to_thread(plan_upload, path, target)
    for skipped in plan.left_out:
        say(f"left out {skipped}: not a regular file")
    with Meter(sum(file.size for file in plan.files)) as meter:
        for folder in plan.folders:
            await _make_folder(envd, folder)
        await each(plan.files, AT_ONCE, lambda file: _send(envd, file, meter))
    await _make_executable(envd, [file.target for file in plan.files if file.executable])
    return meter


def plan_upload(source: Path, target: str) -> Plan:
    """Find everything under `source`, which becomes `target`."""
    plan = Plan()
    status = source.stat()
    if stat.S_ISREG(status.st_mode):
        plan.files.append(_file(source, target, status))
        return plan
    if not stat.S_ISDIR(status.st_mode):
        raise CommandError(f"{source} is neither a file nor a folder")
    _plan_folder(plan, source, PurePosixPath(target))
    return plan


def _plan_folder(plan: Plan, folder: Path, target: PurePosixPath) -> None:
    brought_along = False
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            below = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                _plan_folder(plan, Path(entry.path), below)
            elif entry.is_file(follow_symlinks=False):
                plan.files.append(_file(Path(entry.path), str(below), entry.stat()))
            else:
                plan.left_out.append(Path(entry.path))
                continue
            brought_along = True
    if not brought_along:
        plan.folders.append(str(target))


def _file(source: Path, target: str, status: os.stat_result) -> LocalFile:
    return LocalFile(source, target, status.st_size, bool(status.st_mode & 0o111))


async def _target(envd: EnvdClient, path: Path, source: str, destination: str) -> str:
    """What `source` is called in the sandbox, by the rules of cp."""
    name, is_folder = await asyncio.to_thread(lambda: (path.resolve().name, path.is_dir()))
    there = await envd.files.exists(destination)
    if there is not None and not there.is_dir:
        if is_folder:
            raise CommandError(f"{destination} in the sandbox is a file, {source} a folder")
        if destination.endswith("/"):
            raise CommandError(f"{destination} in the sandbox isn't a folder")
    if there is not None and there.is_dir:
        into = not (is_folder and f"/{source.rstrip('/')}".endswith("/."))
    else:
        into = destination.endswith("/") and not is_folder
    return str(PurePosixPath(destination) / name) if into else destination


async def _make_folder(envd: EnvdClient, path: str) -> None:
    try:
        await envd.files.make_dir(path)
    except GuestError as error:
        if error.code is not Code.ALREADY_EXISTS:
            raise


async def _send(envd: EnvdClient, file: LocalFile, meter: Meter) -> None:
    await envd.files.write(file.target, _chunks(file, meter))
    meter.files += 1


async def _chunks(file: LocalFile, meter: Meter) -> AsyncGenerator[bytes]:
    opened = await asyncio.to_thread(file.source.open, "rb")
    try:
        while chunk := await asyncio.to_thread(opened.read, CHUNK):
            yield chunk
            meter.add(file.source.name, len(chunk))
    finally:
        opened.close()


async def _make_executable(envd: EnvdClient, paths: list[str]) -> None:
    """envd's files have no mode to set, so chmod does it; a guest without chmod keeps plain files."""
    done = 0
    with suppress(GuestError):
        for start in range(0, len(paths), _CHMOD_BATCH):
            batch = paths[start : start + _CHMOD_BATCH]
            async with await envd.processes.start("chmod", ["+x", "--", *batch], timeout=60.0) as stream:
                async for event in stream:
                    if isinstance(event, End) and event.exit_code == 0:
                        done += len(batch)
    if done < len(paths):
        say(f"{len(paths) - done} files aren't executable in the sandbox: chmod failed there")
