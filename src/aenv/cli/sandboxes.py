"""Commands on sandboxes as a whole: ls, info, pause, resume, fork, timeout, rm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from aenv.cli.api import ApiClient, ForkResult, SandboxInfo
from aenv.cli.context import api, run
from aenv.cli.errors import ApiError, CommandError, failure_of, report
from aenv.cli.options import (
    Format,
    MetadataOption,
    OutputOption,
    SandboxArgument,
    SandboxesArgument,
    chosen_format,
    pairs,
)
from aenv.cli.output import local_time, print_fields, print_json, print_line, print_list, remaining

_COLUMNS = ("SANDBOX ID", "TEMPLATE", "STATE", "CPU", "MEM (MiB)", "DISK (MiB)", "STARTED", "LEFT")


class State(StrEnum):
    """The states that can be listed."""

    RUNNING = "running"
    PAUSED = "paused"


def ls(
    ctx: typer.Context,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    metadata: MetadataOption = None,
    output: OutputOption = None,
) -> None:
    """List sandboxes, running and paused.

    \b
    aenv ls
    aenv ls --state paused --metadata team=search
    aenv ls --output json | jq -r '.[].sandboxID'
    """
    wanted = pairs(metadata, "--metadata")

    async def work() -> list[SandboxInfo]:
        async with api(ctx) as client:
            return await client.sandboxes(state=state, metadata=wanted)

    rows = [(_cells(sandbox), sandbox.wire) for sandbox in run(work())]
    print_list(rows, _COLUMNS, chosen_format(ctx, output))


def info(ctx: typer.Context, sandbox: SandboxArgument, output: OutputOption = None) -> None:
    """Show one sandbox. The JSON holds its access token too.

    \b
    aenv info ID
    """

    async def work() -> SandboxInfo:
        async with api(ctx) as client:
            return await client.info(sandbox)

    found = run(work())
    fields = [*zip(_COLUMNS, _cells(found), strict=True), ("ENDS", local_time(found.end_at))]
    if "pauseReason" in found.wire:
        fields.append(("PAUSED", found.wire["pauseReason"]))
    fields += [("METADATA", f"{key}={value}") for key, value in found.metadata.items()]
    print_fields(fields, found.wire, chosen_format(ctx, output))


def pause(
    ctx: typer.Context,
    sandboxes: SandboxesArgument,
    disk_only: Annotated[
        bool, typer.Option("--disk-only", help="Keep the disk alone; a resume will boot it.")
    ] = False,
) -> None:
    """Pause sandboxes: memory, processes and disk are kept, nothing runs and nothing expires.

    \b
    aenv pause ID
    """

    async def one(client: ApiClient, sandbox: str) -> str:
        try:
            await client.pause(sandbox, memory=not disk_only)
        except ApiError as error:
            if error.status != 409:
                raise
            if (await client.info(sandbox)).state != State.PAUSED:
                raise
            return f"{sandbox} was paused already"
        return f"Paused {sandbox}"

    _each(ctx, sandboxes, one)


def resume(
    ctx: typer.Context,
    sandboxes: SandboxesArgument,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECS", help="Seconds to the next deadline.")] = 300,
    reboot: Annotated[
        bool, typer.Option("--reboot", help="Boot from the disk instead, as after a power cut.")
    ] = False,
) -> None:
    """Resume paused sandboxes where they were.

    \b
    aenv resume ID --timeout 3600
    """

    async def one(client: ApiClient, sandbox: str) -> str:
        await client.connect(sandbox, timeout, reboot=reboot)
        return f"Resumed {sandbox}"

    _each(ctx, sandboxes, one)


def timeout(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    seconds: Annotated[
        int, typer.Argument(min=1, metavar="SECS", help="Seconds from now.", show_default=False)
    ],
) -> None:
    """Set a sandbox's deadline. At the deadline it is paused, or deleted if it was started so.

    \b
    aenv timeout ID 3600
    """

    async def one(client: ApiClient, sandbox: str) -> str:
        await client.set_timeout(sandbox, seconds)
        return f"Timeout for {sandbox} set to {seconds}s"

    _each(ctx, [sandbox], one)


def rm(ctx: typer.Context, sandboxes: SandboxesArgument) -> None:
    """Delete sandboxes, running or paused, with all that is in them. Snapshots stay.

    \b
    aenv rm ID
    aenv rm $(aenv ls --output json | jq -r '.[].sandboxID')
    """

    async def one(client: ApiClient, sandbox: str) -> str:
        await client.kill(sandbox)
        return f"Deleted sandbox {sandbox}"

    _each(ctx, sandboxes, one)


def fork(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 1,
    timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECS", help="Seconds to the children's deadline.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Make independent copies of a running sandbox, memory and disk; it runs on.

    Prints the ids of the copies, one a line.

    \b
    aenv fork ID -n 4
    """

    async def work() -> list[ForkResult]:
        async with api(ctx) as client:
            return await client.fork(sandbox, count, timeout)

    results = run(work())
    children = [result.sandbox for result in results if result.sandbox is not None]
    if chosen_format(ctx, output) is Format.JSON:
        print_json([child.wire for child in children])
    else:
        for child in children:
            print_line(child.sandbox_id)
    errors = [result.error for result in results if result.sandbox is None]
    if errors:
        raise CommandError(f"{len(errors)} of {len(results)} copies failed: {errors[0]}")


def rollback(
    ctx: typer.Context,
    sandbox: SandboxArgument,
    snapshot: Annotated[
        str,
        typer.Argument(metavar="SNAPSHOT", help="Name or id of its snapshot.", show_default=False),
    ],
) -> None:
    """Put a running sandbox back to one of its snapshots, memory and disk. It keeps its id.

    \b
    aenv snapshot create ID --name before
    aenv rollback ID before
    """

    async def one(client: ApiClient, sandbox: str) -> str:
        await client.roll_back(sandbox, snapshot)
        return f"Put {sandbox} back to {snapshot}"

    _each(ctx, [sandbox], one)


def _each(
    ctx: typer.Context, sandboxes: Sequence[str], one: Callable[[ApiClient, str], Awaitable[str]]
) -> None:
    """Do `one` for each in turn, printing its answer; go on after a failure, and fail at the end."""

    async def work() -> int:
        failed = 0
        async with api(ctx) as client:
            for sandbox in sandboxes:
                try:
                    print_line(await one(client, sandbox))
                except ApiError as error:
                    if len(sandboxes) == 1 or error.status == 401:
                        raise
                    report(failure_of(error))
                    failed += 1
        return failed

    failed = run(work())
    if failed:
        raise CommandError(f"{failed} of {len(sandboxes)} failed")


def _cells(sandbox: SandboxInfo) -> tuple[str, ...]:
    return (
        sandbox.sandbox_id,
        sandbox.alias or sandbox.template_id,
        sandbox.state,
        str(sandbox.cpu_count),
        str(sandbox.memory_mib),
        str(sandbox.disk_mib),
        local_time(sandbox.started_at),
        remaining(sandbox.end_at) if sandbox.state == State.RUNNING else "",
    )
