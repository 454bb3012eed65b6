"""The local terminal: raw mode, window size, and input and output that don't block the event loop."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

READ_SIZE = 32 * 1024


@contextmanager
def raw_mode(fd: int) -> Iterator[None]:
    """Pass every key through as it is typed; the terminal is as before afterwards, whatever happens."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def window_size(fd: int) -> tuple[int, int]:
    """Columns and rows of the terminal; 80 by 24 if it doesn't know."""
    size = os.get_terminal_size(fd)
    return (size.columns, size.lines) if size.columns and size.lines else (80, 24)


async def read_input(fd: int) -> bytes:
    """What can be read from `fd` now, waiting until there is something; empty at its end."""
    while True:
        if not await _readable(fd):
            # A regular file: always readable, and the event loop can't wait for it.
            return await asyncio.to_thread(os.read, fd, READ_SIZE)
        try:
            return os.read(fd, READ_SIZE)
        except BlockingIOError:
            continue


async def _readable(fd: int) -> bool:
    """Wait until `fd` can be read; False if it is of a kind that can't be waited for."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    except PermissionError:
        return False
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return True


async def write_output(fd: int, data: bytes) -> None:
    """Write all of `data`. Raises BrokenPipeError if nobody reads any more."""
    await asyncio.to_thread(_write_all, fd, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            os.set_blocking(fd, True)


@contextmanager
def on_signals(handlers: Mapping[int, Callable[[], object]]) -> Iterator[None]:
    """Have the event loop call the handlers, without arguments, for signals that arrive inside."""
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines beside the body, and cancel them at its end. Their own errors are raised then."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
