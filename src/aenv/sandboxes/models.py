"""Records of sandboxes, snapshots and templates, and the requests that change them.

Times are seconds since the epoch, as float. Everything here is immutable: a change is a new record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aenv.runtimes.base import Resources
from aenv.sandboxes.states import State

ENVD_PORT = 49983
"""Port of the guest agent, fixed by the E2B contract."""

ENVD_VERSION = "0.6.13"
"""The agent's interface version that SDKs see; gates features in them."""


@dataclass(frozen=True)
class Sandbox:
    """The durable record that a client sees."""

    id: str
    template_id: str
    alias: str | None
    state: State
    started_at: float
    end_at: float
    """The deadline while running; the time of the pause while paused."""
    timeout: float
    auto_pause: bool
    """Pause at the deadline; else the sandbox is killed there."""
    auto_resume: bool
    resources: Resources
    capture_id: str
    """The capture its VM started from, or that it is paused to."""
    envd_token: str | None
    traffic_token: str | None
    """Set if traffic to the sandbox's ports needs the token."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    """E2B's network configuration as given."""
    allow_internet_access: bool | None = None
    instance_id: str | None = None
    reason: str | None = None
    """Why the sandbox is lost."""
    envd_unresponsive_at_pause: bool = False


@dataclass(frozen=True)
class Template:
    """A name that points to a capture: built from an image, or taken from a sandbox (a snapshot)."""

    id: str
    build_id: str
    """UUID; changes when the name gets a new capture."""
    name: str | None
    capture_id: str
    resources: Resources
    created_at: float
    updated_at: float
    source_sandbox_id: str | None = None
    """The sandbox it was taken from: set for snapshots only."""

    @property
    def is_snapshot(self) -> bool:
        """Whether it was taken from a sandbox."""
        return self.source_sandbox_id is not None

    @property
    def snapshot_id(self) -> str:
        """What the E2B API calls the snapshot; usable as a template."""
        return f"{self.name or self.id}:default"

    @property
    def names(self) -> list[str]:
        """The names by which it can be found, beside its id."""
        return [] if self.name is None else [self.name]


@dataclass(frozen=True)
class CreateSandbox:
    """A request for a new sandbox. `template` is an id, an alias or either with `:tag`."""

    template: str
    timeout: float
    auto_pause: bool
    auto_resume: bool = False
    secure: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    allow_internet_access: bool | None = None


@dataclass(frozen=True)
class SandboxFilter:
    """What a list shows. `metadata` pairs must all match; `template` is an id or alias."""

    states: frozenset[State]
    metadata: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    started_after: float | None = None
    """Inclusive."""
    ascending: bool = False
    """Order by start time; newest first unless set."""
    limit: int = 100
    cursor: tuple[float, str] | None = None
    """`(started_at, id)` of the last record of the page before."""


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Where a running sandbox's ports are, and what its traffic needs."""

    host: str
    envd_token: str | None
    traffic_token: str | None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the VM stops, is paused or dies: no packet will say so, so streams must be cut then."""
