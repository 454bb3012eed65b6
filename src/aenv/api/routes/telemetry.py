"""Metrics and logs of sandboxes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from aenv.api.routes.paths import SandboxId
from aenv.api.telemetry_models import (
    SandboxesWithMetrics,
    SandboxLog,
    SandboxLogEntry,
    SandboxLogs,
    SandboxLogsV2,
    SandboxMetric,
)
from aenv.errors import InvalidRequest
from aenv.guest.reports import LEVELS, Level
from aenv.sandboxes.base import Sandboxes
from aenv.telemetry.logs import LogEntry
from aenv.telemetry.service import Telemetry

MAX_IDS = 100
"""Sandboxes whose metrics can be asked for at once."""

MAX_LOGS = 1000
"""Most log entries of one answer of the new API, and what both give by default."""

_LARGEST = 2**63 - 1

Seconds = Annotated[int | None, Query(ge=0, le=_LARGEST)]
"""A time in whole seconds since the epoch."""
Milliseconds = Annotated[int | None, Query(ge=0, le=_LARGEST)]


def telemetry_router(sandboxes: Sandboxes, telemetry: Telemetry) -> APIRouter:
    """Metrics of one and of several sandboxes, and both generations of logs."""
    router = APIRouter()

    @router.get("/sandboxes/metrics")
    async def latest(sandbox_ids: Annotated[list[str], Query()]) -> SandboxesWithMetrics:
        ids = {each for text in sandbox_ids for each in text.split(",") if each}
        if len(ids) > MAX_IDS:
            raise InvalidRequest(f"sandbox_ids: {len(ids)} are more than {MAX_IDS}")
        found = await telemetry.latest(ids)
        return SandboxesWithMetrics(sandboxes={each: SandboxMetric.of(found[each]) for each in found})

    @router.get("/sandboxes/{sandbox_id}/metrics")
    async def metrics(
        sandbox_id: SandboxId, start: Seconds = None, end: Seconds = None
    ) -> list[SandboxMetric]:
        if start is not None and end is not None and start > end:
            raise InvalidRequest("start: must not be after end")
        await sandboxes.get(sandbox_id)
        return [SandboxMetric.of(sample) for sample in await telemetry.metrics(sandbox_id, start, end)]

    @router.get("/sandboxes/{sandbox_id}/logs")
    async def logs_v1(
        sandbox_id: SandboxId,
        start: Milliseconds = None,
        limit: Annotated[int, Query(ge=0, le=2**31 - 1)] = MAX_LOGS,
    ) -> SandboxLogs:
        await sandboxes.get(sandbox_id)
        entries = [each for each in await telemetry.logs(sandbox_id) if _milliseconds(each) >= (start or 0)]
        entries = entries[:limit]
        return SandboxLogs(
            logs=[SandboxLog.of(entry) for entry in entries],
            log_entries=[SandboxLogEntry.of(entry) for entry in entries],
        )

    @router.get("/v2/sandboxes/{sandbox_id}/logs")
    async def logs_v2(
        sandbox_id: SandboxId,
        *,
        cursor: Milliseconds = None,
        limit: Annotated[int, Query(ge=0, le=MAX_LOGS)] = MAX_LOGS,
        direction: Literal["forward", "backward"] = "forward",
        level: Level = "debug",
        search: Annotated[str, Query(max_length=256)] = "",
    ) -> SandboxLogsV2:
        await sandboxes.get(sandbox_id)
        backward = direction == "backward"
        levels = LEVELS[LEVELS.index(level) :]
        found = [
            entry
            for entry in await telemetry.logs(sandbox_id)
            if entry.level in levels and search in entry.message and _beyond(entry, cursor, backward=backward)
        ]
        if backward:
            found.reverse()
        return SandboxLogsV2(logs=[SandboxLogEntry.of(entry) for entry in found[:limit]])

    return router


def _milliseconds(entry: LogEntry) -> int:
    return int(entry.time * 1000)


def _beyond(entry: LogEntry, cursor: int | None, *, backward: bool) -> bool:
    """Whether a list that starts at `cursor`, milliseconds since the epoch and inclusive, has the entry."""
    if cursor is None:
        return True
    return _milliseconds(entry) <= cursor if backward else _milliseconds(entry) >= cursor
