"""A build as a command carries it out: asked for, files sent, started, followed to its end or cancelled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aenv.cli.api import Wire
from aenv.cli.archives import Upload
from aenv.cli.build_display import BuildDisplay
from aenv.cli.errors import ApiError, CommandError, UnreachableError
from aenv.cli.template_api import RequestedBuild, TemplateApi, Wanted

POLL_SECONDS = 0.25
RETRIES = 20
RETRY_SECONDS = 1.0
"""How often, and after which rest, a server is asked again that doesn't answer: the build may go on there."""

CANCEL_SECONDS = 30.0
"""Longest wait for the end of a build that is cancelled."""

_STEPS_AROUND = {"base": "at its image", "finalize": "at its end"}


async def build(
    templates: TemplateApi,
    display: BuildDisplay,
    wanted: Wanted,
    recipe: Wire,
    uploads: Mapping[str, Upload],
) -> RequestedBuild:
    """Build a template and show it; whoever interrupts this cancels the build.

    `uploads` are the files that the recipe needs, by what a person calls them. Raises CommandError if the
    build fails, ApiError, UnreachableError.
    """
    build = await templates.request_build(wanted)
    async with _cancelled_with_us(templates, display, build):
        for name, upload in uploads.items():
            await _send(templates, display, build, name, upload)
        await templates.start_build(build, recipe)
        await follow(templates, display, build)
    return build


async def follow(
    templates: TemplateApi, display: BuildDisplay, build: RequestedBuild, *, level: str = "info"
) -> None:
    """Show a build's log from the beginning to the end of the build. Raises CommandError if it fails."""
    seen = 0
    while True:
        status = await _asked_again(templates, build, seen, level)
        entries: Sequence[Wire] = status["logEntries"]
        display.entries(entries)
        seen += len(entries)
        is_over = status["status"] in {"ready", "error"}
        if is_over and not entries:
            break
        if not is_over:
            with suppress(ApiError, UnreachableError):
                display.layers(await templates.layers(build))
            await asyncio.sleep(POLL_SECONDS)
    if status["status"] == "error":
        raise _failure(status)


async def every_entry(templates: TemplateApi, build: RequestedBuild, level: str) -> Sequence[Wire]:
    """The log of a build as it is now."""
    entries: list[Wire] = []
    while page := (await templates.status(build, len(entries), level))["logEntries"]:
        entries.extend(page)
    return entries


async def _asked_again(templates: TemplateApi, build: RequestedBuild, seen: int, level: str) -> Wire:
    for _ in range(RETRIES):
        with suppress(UnreachableError):
            return await templates.status(build, seen, level)
        await asyncio.sleep(RETRY_SECONDS)
    return await templates.status(build, seen, level)


def _failure(status: Wire) -> CommandError:
    """All of the message is in the log that was shown: its first line says what."""
    reason: Wire = status.get("reason") or {}
    message = str(reason.get("message", "")).split("\n")[0].rstrip(":")
    step = reason.get("step")
    where = "" if step is None else f" {_STEPS_AROUND.get(step, f'at step {step}')}"
    return CommandError(f"the build failed{where}: {message or 'the server gave no reason'}")


async def _send(
    templates: TemplateApi, display: BuildDisplay, build: RequestedBuild, name: str, upload: Upload
) -> None:
    done = 0

    def sent(size: int) -> None:
        nonlocal done
        done += size
        display.sent(name, done, upload.size)

    await templates.upload(build, upload, sent)


@asynccontextmanager
async def _cancelled_with_us(
    templates: TemplateApi, display: BuildDisplay, build: RequestedBuild
) -> AsyncIterator[None]:
    """The build ends if the block is left before it is over: by Ctrl-C, SIGTERM or an error."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    except UnreachableError:
        name = f"{build.template_id} --build {build.build_id}"
        display.say(f"The build may go on: aenv template logs {name}")
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            display.say("cancelling the build …")
        with suppress(ApiError, UnreachableError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await templates.cancel(build)
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
