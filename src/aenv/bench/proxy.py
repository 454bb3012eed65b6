"""The server's proxy against nginx, to the same port.

The sandbox is one of the fake runtime, whose guest has a loopback address. What listens there is quick: a
guest under emulation would be the limit. The server and nginx share one core, of which one of them is idle at
any time, and everything else has the other cores: both numbers are of one core.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aenv.bench.load import Load, run_load
from aenv.bench.nginx import Address, answer_at, free_address, nginx_version, proxy_to, running_nginx
from aenv.bench.rows import Report, Row
from aenv.bench.server import ONE_GUEST, Server, cpu_seconds, resident, routing, running_server
from aenv.bench.streams import Connection, StandIn, open_stream, open_websocket
from aenv.limits import raise_file_limit

BUSY_CONNECTIONS = 32
OPENED_AT_ONCE = 50
SETTLE_SECONDS = 2.0
"""Until memory that only the opening needed has been given back."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    round_seconds: float = 3.0
    websockets: int = 1000
    streams: int = 500
    events: int = 10


@dataclass(frozen=True)
class _Way:
    """A way to the port: where to connect, with which headers, and the process in between."""

    address: Address
    headers: Mapping[str, str]
    pid: int


async def measure(report: Report, runs: int, size: Size | None = None) -> None:
    """`runs` rounds of small requests each way; then WebSockets and streams that stay open."""
    size = size or Size()
    report.versions["nginx"] = await asyncio.to_thread(nginx_version)
    raise_file_limit()
    async with _set_up() as (server, nginx, standing):
        await _requests(report, server[0], nginx[0], runs, size.round_seconds)
        await _websockets(report, server[1], size.websockets)
        await _streams(report, server[1], nginx[1], standing, size)


@asynccontextmanager
async def _set_up() -> AsyncIterator[tuple[list[_Way], list[_Way], StandIn]]:
    """Ways to the quick answer and to the stand-in, through the server and through nginx."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aenv-bench-")))
        measured, others = stack.enter_context(_divided_cores())
        running = running_server(folder / "home", cores=measured, settings={**ONE_GUEST, "runtime": "fake"})
        server: Server = await stack.enter_async_context(running)
        sandbox = await server.create()
        guest = server.guest_address()
        targets = [free_address(guest) for _ in range(2)]
        answering = running_nginx(folder / "guest", answer_at(targets[0]), targets[0], cores=others)
        await stack.enter_async_context(answering)
        standing = StandIn()
        await stack.enter_async_context(standing.listening(targets[1]))
        fronts = [free_address("127.0.0.1") for _ in targets]
        config = "".join(map(proxy_to, fronts, targets))
        nginx = await stack.enter_async_context(
            running_nginx(folder / "reference", config, fronts[1], cores=measured)
        )
        url = urlsplit(server.url)
        own = Address(str(url.hostname), int(url.port or 0))
        yield (
            [_Way(own, routing(sandbox, target.port), server.pid) for target in targets],
            [_Way(front, {}, nginx) for front in fronts],
            standing,
        )


async def _requests(report: Report, server: _Way, nginx: _Way, runs: int, seconds: float) -> None:
    """One request at a time, then as many as the one core takes."""
    alone = report.row("request_alone")
    rate = report.row("requests", unit="requests/s", target="≥ 2500")
    wall = report.row("request_busy", target="≤ 0.4")
    cpu = report.row("request_cpu")
    for way in (server, nginx):
        await _round(report, "warming up", way, BUSY_CONNECTIONS, seconds / 2)
    for index in range(runs):
        one, _ = await _round(report, f"round {index + 1}", server, 1, seconds / 3)
        many, used = await _round(report, f"round {index + 1}", server, BUSY_CONNECTIONS, seconds)
        for row, load in ((alone, one), (rate, many), (wall, many), (cpu, many)):
            row.n += len(load.times) + load.failed
            row.ok += len(load.times)
        alone.values += one.times
        if many.times:
            rate.values.append(many.rate)
            wall.values.append(1000 / many.rate)
            cpu.values.append(1000 * used / len(many.times))
        one, _ = await _round(report, f"round {index + 1} of nginx", nginx, 1, seconds / 3)
        many, used = await _round(report, f"round {index + 1} of nginx", nginx, BUSY_CONNECTIONS, seconds)
        alone.reference += one.times
        if many.times:
            wall.reference.append(1000 / many.rate)
            cpu.reference.append(1000 * used / len(many.times))


async def _round(
    report: Report, what: str, way: _Way, connections: int, seconds: float
) -> tuple[Load, float]:
    """What came of a round, and the CPU seconds that the process in between used for it.

    A round that breaks off counts as one failed request.
    """
    with report.attempt(what):
        used = cpu_seconds(way.pid)
        load = await run_load(way.address, way.headers, connections=connections, seconds=seconds)
        if load.failed:
            report.tell(f"{what}: {load.failed} requests failed")
        return load, cpu_seconds(way.pid) - used
    return Load(seconds, failed=1), 0.0


async def _websockets(report: Report, way: _Way, count: int) -> None:
    """What the server's memory grows by, per WebSocket that is open and idle; each must still work then."""
    row = report.row("idle_websocket", unit="kB", target="≤ 40")
    warm = await _open_all(report, row, partial(open_websocket, way.address, way.headers), OPENED_AT_ONCE)
    for connection in warm:
        connection.close()
    row.n = row.ok = 0
    await asyncio.sleep(SETTLE_SECONDS)
    before = resident(way.pid)
    opened = await _open_all(report, row, partial(open_websocket, way.address, way.headers), count)
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        growth = resident(way.pid) - before
        for connection in opened:
            with report.attempt("a WebSocket"):
                await connection.echo()
                row.ok += 1
        if opened:
            row.add(growth / len(opened) / 1000, ok=0)
    finally:
        for connection in opened:
            connection.close()


async def _streams(report: Report, server: _Way, nginx: _Way, standing: StandIn, size: Size) -> None:
    """Events to streams that are all open at once, from their sending to the last client's receipt."""
    row = report.row("open_streams", "event")
    for way in (server, nginx):
        counted = row if way is server else Row("nginx")
        opened = await _open_all(
            report, counted, partial(open_stream, way.address, way.headers), size.streams
        )
        times: list[list[float]] = [[] for _ in opened]
        try:
            for _ in range(size.events):
                standing.publish()
                for connection, seen in zip(opened, times, strict=True):
                    with report.attempt("a stream"):
                        seen.append(await connection.event())
        finally:
            for connection in opened:
                connection.close()
        flat = [value for seen in times for value in seen]
        if way is server:
            row.values = flat
            row.ok = sum(len(seen) == size.events for seen in times)
        else:
            row.reference = flat


async def _open_all(
    report: Report, row: Row, opening: Callable[[], Coroutine[Any, Any, Connection]], count: int
) -> list[Connection]:
    """Open so many, a few at a time; counts each in the row's `n`."""
    opened: list[Connection] = []

    async def open_one() -> None:
        with report.attempt("opening", row):
            opened.append(await opening())

    for start in range(0, count, OPENED_AT_ONCE):
        await asyncio.gather(*(open_one() for _ in range(min(OPENED_AT_ONCE, count - start))))
    return opened


@contextmanager
def _divided_cores() -> Iterator[tuple[list[int], list[int]]]:
    """The core for what is measured, and those for all else, this process included until the block ends.

    Both are empty on a machine of one core: nothing can be kept apart there.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield [], []
        return
    os.sched_setaffinity(0, cores[1:])
    try:
        yield cores[:1], cores[1:]
    finally:
        os.sched_setaffinity(0, cores)
