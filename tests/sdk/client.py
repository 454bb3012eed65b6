"""The synchronous and the asynchronous Python SDK behind one face: a test is written once, for both.

The SDK itself is the unmodified one. Where its two halves differ in shape (a PTY's output, a watch's events,
input as a stream), `Client` has one method for both.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from e2b import AsyncSandbox, AsyncTemplate, PtySize, Sandbox, SandboxException, Template

from tests.server import Server


class Loop:
    """An event loop in a thread of its own."""

    def __enter__(self) -> Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`, once it is there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @staticmethod
    async def _settle() -> None:
        """End what runs on still, as streams of commands that nobody waits for."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


class Blocking:
    """An object of the asynchronous SDK whose methods block, so that it looks like its synchronous twin."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return _wrapped(value, self._loop)

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            async def invoke() -> Any:
                result = value(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return _wrapped(self._loop.run(invoke()), self._loop)

        return call


def _wrapped(value: Any, loop: Loop) -> Any:
    """`value`, blocking if it belongs to the asynchronous SDK."""
    if isinstance(value, list):
        return [_wrapped(item, loop) for item in value]
    if isinstance(value, AsyncIterator):
        return _items(value, loop)
    if type(value).__module__.startswith("e2b.sandbox_async"):
        return Blocking(value, loop)
    return value


def _items(items: AsyncIterator[Any], loop: Loop) -> Iterator[Any]:
    async def following() -> list[Any]:
        try:
            return [await anext(items)]
        except StopAsyncIteration:
            return []

    while found := loop.run(following()):
        yield found[0]


class Terminal:
    """A PTY and everything it printed."""

    def __init__(self, handle: Any, output: bytearray, *, reads: bool) -> None:
        self.handle = handle
        self.output = output
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reads:
            self._reader.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.handle.pid)

    def _read(self) -> None:
        with contextlib.suppress(SandboxException):  # it was killed, or its sandbox
            for _, _, data in self.handle:
                self.output += data or b""

    def wait_for(self, expected: bytes, seconds: float = 20.0) -> None:
        """Wait until `expected` was printed."""
        eventually(lambda: expected in self.output, seconds, lambda: bytes(self.output))


class Watch:
    """A watch and every event it told of."""

    def __init__(self, handle: Any, events: list[Any], *, polled: bool) -> None:
        self._handle = handle
        self._events = events
        self._polled = polled

    def events(self) -> list[Any]:
        """All events until now."""
        if self._polled:
            self._events += self._handle.get_new_events()
        return list(self._events)

    def wait_for(self, names: set[str], seconds: float = 30.0) -> list[Any]:
        """Wait until there was an event for each of `names`; all events until then."""
        seen: set[str] = set()

        def complete() -> bool:
            seen.update(event.name for event in self.events())
            return names <= seen

        eventually(complete, seconds, lambda: sorted(names - seen)[:20])
        return list(self._events)

    def stop(self) -> None:
        """End it."""
        self._handle.stop()


class Client:
    """One half of the Python SDK, on one server."""

    def __init__(self, server: Server, loop: Loop | None) -> None:
        self.options = {"api_url": server.url, "sandbox_url": server.url, "api_key": server.key}
        self._loop = loop
        self.is_async = loop is not None
        self.sandbox_class: Any = Blocking(AsyncSandbox, loop) if loop is not None else Sandbox
        self.template_class: Any = Blocking(AsyncTemplate, loop) if loop is not None else Template

    @property
    def api(self) -> dict[str, str]:
        """The options of calls that concern no sandbox."""
        return {name: self.options[name] for name in ("api_url", "api_key")}

    def new_template(self, context: Path | None = None) -> Any:
        """A template without anything, whose files are in `context`."""
        return (AsyncTemplate if self.is_async else Template)(file_context_path=context)

    def build(self, template: Any, name: str, **options: Any) -> Any:
        """Build a template, to its end."""
        return self.template_class.build(template, name, **options, **self.api)

    def delete_template(self, name: str) -> None:
        """Delete a template: no method of the SDK does, but the one for snapshots sends what is needed."""
        assert self.sandbox_class.delete_snapshot(name, **self.api)

    def create(self, template: str = "base", **options: Any) -> Any:
        """A new sandbox."""
        return self.sandbox_class.create(template, **{"timeout": 900, **options}, **self.options)

    def connect(self, sandbox_id: str, **options: Any) -> Any:
        """A sandbox that exists."""
        return self.sandbox_class.connect(sandbox_id, **options, **self.options)

    def open_terminal(self, sandbox: Any, *, rows: int = 24, cols: int = 80, **options: Any) -> Terminal:
        """A new PTY."""
        size, output = PtySize(rows=rows, cols=cols), bytearray()
        if self.is_async:
            return Terminal(sandbox.pty.create(size, output.extend, **options), output, reads=False)
        return Terminal(sandbox.pty.create(size, **options), output, reads=True)

    def connect_terminal(self, sandbox: Any, pid: int) -> Terminal:
        """A PTY that exists."""
        output = bytearray()
        if self.is_async:
            return Terminal(sandbox.pty.connect(pid, output.extend), output, reads=False)
        return Terminal(sandbox.pty.connect(pid), output, reads=True)

    def watch(self, sandbox: Any, path: str, **options: Any) -> Watch:
        """A new watch."""
        events: list[Any] = []
        if self.is_async:
            return Watch(sandbox.files.watch_dir(path, events.append, **options), events, polled=False)
        return Watch(sandbox.files.watch_dir(path, **options), events, polled=True)

    def run_unread(self, sandbox: Any, command: str) -> Any:
        """A command in the background whose output nobody takes."""

        async def never(_: str) -> None:
            await asyncio.Event().wait()

        # The synchronous SDK reads only while its caller asks for events.
        options = {"on_stdout": never} if self.is_async else {}
        return sandbox.commands.run(command, background=True, timeout=0, **options)

    def stream(self, chunks: Iterable[bytes]) -> Iterable[bytes] | AsyncIterator[bytes]:
        """`chunks` as a source of an upload of unknown length."""

        async def asynchronously() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        return asynchronously() if self.is_async else iter(chunks)

    def stream_input(self, commands: Any, pid: int, chunks: list[str | bytes]) -> None:
        """Send `chunks` as one stream of input."""
        if self._loop is None:
            commands.stream_input(pid, iter(chunks))
            return
        stream = commands.stream_input(pid)
        for chunk in chunks:
            stream.send(chunk)
        stream.close()


def eventually(
    condition: Callable[[], bool],
    seconds: float = 20.0,
    state: Callable[[], object] = lambda: "it never came true",
) -> None:
    """Wait until `condition` holds; after `seconds` fail with `state`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, state()
        time.sleep(0.05)
