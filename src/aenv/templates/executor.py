"""Does the steps of a build in a VM, through its agent: nothing is asked of the image but a shell for RUN."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from aenv.errors import InvalidRequest
from aenv.guest.errors import Code, GuestError
from aenv.guest.files import Files
from aenv.sandboxes.machines import Machine
from aenv.templates import archive
from aenv.templates.accounts import Accounts
from aenv.templates.build_log import BuildLog
from aenv.templates.commands import ROOT, SHELLS, Commands, Output, StepFailed, while_alive
from aenv.templates.context import Context
from aenv.templates.steps import Copy, Run, Step, User, Workdir
from aenv.templates.uploads import Uploads

_ACCOUNT_FILES: Final = ("passwd", "group", "shadow", "gshadow")

_MOST_ACCOUNTS: Final = 4 << 20
"""Bytes of one of these files, which is held in memory: it may be anything that the image has there."""


class Executor:
    """Does steps in one machine."""

    def __init__(self, machine: Machine, uploads: Uploads, log: BuildLog) -> None:
        self._machine = machine
        self._files = machine.guest.files
        self._uploads = uploads
        self._log = log

    async def do(self, step: Step, context: Context, *, prefix: str, number: str) -> None:
        """Do one step. Raises StepFailed, or what has become of the VM."""
        try:
            await while_alive(self._machine, self._do(step, context, prefix, number))
        except GuestError as error:
            raise StepFailed(f"{step.action}: {error.message}") from error

    async def _do(self, step: Step, context: Context, prefix: str, number: str) -> None:
        after = step.after(context)
        match step.action:
            case Run(command, user, shell):
                output = Output(self._log, prefix, number)
                commands = Commands(self._machine)
                code = await commands.run(command, context, output, user=user, shell=shell)
                if code != 0:
                    raise output.failure(str(step.action), code)
            case Copy():
                await self._copy(step.action, context)
            case Workdir():
                await self._make_folder(after.workdir or after.home, after.user)
            case User():
                await self._make_account(after)

    async def _copy(self, copy: Copy, context: Context) -> None:
        owner = copy.owner or context.user
        await self._make_account(Context(user=owner))
        destination = context.path(copy.destination)
        with self._uploads.using(copy.files_hash) as path:
            try:
                entries = await asyncio.to_thread(archive.listing, path)
                there = await self._files.exists(destination.rstrip("/") or "/", user=ROOT)
                into = there is not None and there.is_dir
                where = await asyncio.to_thread(archive.plan, entries, copy.source, destination, into=into)
                async with aclosing(archive.in_pieces(archive.renamed(path, where))) as pieces:
                    await self._files.extract(pieces, owner=owner, mode=copy.mode)
            except FileNotFoundError as error:
                raise StepFailed(f"{copy}: its files were not uploaded, or long ago: build again") from error
            except archive.BadArchive as error:
                await self._uploads.discard(copy.files_hash)
                raise StepFailed(f"{copy}: {error.message}") from error
            except InvalidRequest as error:
                raise StepFailed(f"{copy}: {error.message}") from error

    async def _make_folder(self, path: str, owner: str) -> None:
        """A folder, and its parents, if they are missing: those made are the owner's."""
        try:
            await self._files.make_dir(path, user=owner)
        except GuestError as error:
            if error.code is not Code.ALREADY_EXISTS:
                raise

    async def _make_account(self, context: Context) -> None:
        """See that there is such a user. One that is a number, or has a group, must be known as it is."""
        try:
            await self._files.stat("/", user=context.user)
        except GuestError as error:
            if error.code is not Code.UNAUTHENTICATED or ":" in context.user:
                raise
        else:
            return
        texts = [await _read(self._files, f"/etc/{name}") for name in _ACCOUNT_FILES]
        known = Accounts(*texts)
        shells = [path for path in SHELLS if await self._exists(path)]
        changed = known.with_user(context.user, next(iter(shells), "/sbin/nologin"))
        for name, text, before in zip(
            _ACCOUNT_FILES,
            (changed.passwd, changed.group, changed.shadow, changed.gshadow),
            texts,
            strict=True,
        ):
            if text is not None and text != before:
                await self._files.write(f"/etc/{name}", text.encode(errors="surrogateescape"), user=ROOT)
        await self._make_folder(context.home, context.user)

    async def _exists(self, path: str) -> bool:
        return await self._files.exists(path, user=ROOT) is not None


async def _read(files: Files, path: str) -> str | None:
    """A small file of the guest; None if there is none."""
    try:
        content = b""
        async with aclosing(files.read(path, user=ROOT)) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > _MOST_ACCOUNTS:
                    raise StepFailed(f"{path} is larger than {_MOST_ACCOUNTS >> 20} MiB")
        return content.decode(errors="surrogateescape")
    except GuestError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
