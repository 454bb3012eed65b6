"""What goes over the wire about metrics and logs, with the E2B contract's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from aenv.api.models import ResponseBody, moment
from aenv.guest.reports import Level
from aenv.telemetry.history import Sample
from aenv.telemetry.logs import LogEntry


class SandboxMetric(ResponseBody):
    """One sample; sizes in bytes."""

    timestamp: datetime
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int

    @classmethod
    def of(cls, sample: Sample) -> SandboxMetric:
        """The answer that describes `sample`."""
        return cls(
            timestamp=moment(sample.time),
            timestamp_unix=int(sample.time),
            cpu_count=sample.cpu_count,
            cpu_used_pct=sample.cpu_used_pct,
            mem_used=sample.mem_used,
            mem_total=sample.mem_total,
            mem_cache=sample.mem_cache,
            disk_used=sample.disk_used,
            disk_total=sample.disk_total,
        )


class SandboxesWithMetrics(ResponseBody):
    """The newest sample of each of several sandboxes, by id."""

    sandboxes: Mapping[str, SandboxMetric]


class SandboxLog(ResponseBody):
    """An entry as a line of JSON, in which E2B's CLI looks for `level`, `logger` and `message`."""

    timestamp: datetime
    line: str

    @classmethod
    def of(cls, entry: LogEntry) -> SandboxLog:
        """The line that describes `entry`."""
        known = {"level": entry.level, "logger": entry.logger, "message": entry.message}
        line = json.dumps({**entry.fields, **known}, ensure_ascii=False, separators=(",", ":"))
        return cls(timestamp=moment(entry.time), line=line)


class SandboxLogEntry(ResponseBody):
    """An entry with its parts."""

    timestamp: datetime
    message: str
    level: Level
    fields: Mapping[str, str]

    @classmethod
    def of(cls, entry: LogEntry) -> SandboxLogEntry:
        """The answer that describes `entry`."""
        fields = {**entry.fields, "logger": entry.logger}
        return cls(timestamp=moment(entry.time), message=entry.message, level=entry.level, fields=fields)


class SandboxLogs(ResponseBody):
    """The same entries in both forms."""

    logs: list[SandboxLog]
    log_entries: list[SandboxLogEntry]


class SandboxLogsV2(ResponseBody):
    """Entries in the order that was asked for."""

    logs: list[SandboxLogEntry]
