"""Records of sandboxes, snapshots and templates, and the requests that change them.

Times are seconds since the epoch, as float. Everything here is immutable: a change is a new record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aenv.host import MemoryUse
from aenv.runtimes.base import Resources
from aenv.sandboxes.states import State

ENVD_VERSION = "0.6.13"
"""The agent's interface version that SDKs see; gates features in them."""

PORT_MARK = "${PORT}"
"""Stands for the sandbox's port in `maskRequestHost`, as in E2B."""

PauseMode = Literal["full", "filesystem"]
"""What a pause keeps: memory and disk, or the disk alone, from which the sandbox is then rebooted."""


@dataclass(frozen=True)
class Defaults:
    """What a build of a template gave to everything that is started from it."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """Who acts when a request names nobody; the agent's own default if None."""
    workdir: str | None = None
    """Where processes start; the user's home if None."""
    start_command: str | None = None
    """What ran when the template was captured."""
    ready_command: str | None = None


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
    """The VM that belongs to it, or that it had when it was lost."""
    reason: str | None = None
    """Why the sandbox is lost, or was paused though nobody asked for it."""
    build_id: str | None = None
    """The template's build that it was started from; unknown for records of before there were builds."""
    envd_unresponsive_at_pause: bool = False
    auto_pause_memory: bool = True
    """Whether the pause at the deadline keeps the memory."""
    pause_mode: PauseMode = "full"
    """What the last pause kept."""
    defaults: Defaults = field(default_factory=Defaults)
    """What it has from its template."""

    @property
    def memory_is_usable(self) -> bool:
        """Whether a paused sandbox can go on where it was: there is a memory, and its agent answers."""
        return self.pause_mode == "full" and not self.envd_unresponsive_at_pause


@dataclass(frozen=True)
class Build:
    """One capture of a template, from an image or a sandbox. It is kept while a tag points to it."""

    id: str
    """UUID."""
    capture_id: str
    resources: Resources
    created_at: float
    source_sandbox_id: str | None = None
    """The sandbox it was taken from: set for snapshots only."""
    defaults: Defaults = field(default_factory=Defaults)
    key: str | None = None
    """What it was made from, if it was built from steps: the same again comes to the same."""
    made_by: str | None = None
    """The build whose capture it has, as nothing had changed since; None if it has its own."""


@dataclass(frozen=True)
class Template:
    """A template or snapshot, seen at one of its builds."""

    id: str
    name: str | None
    namespace: str | None
    """None for built-in templates, which belong to nobody."""
    public: bool
    created_at: float
    updated_at: float
    spawn_count: int
    """Sandboxes started from it so far."""
    last_spawned_at: float | None
    build_count: int
    build: Build
    tag: str
    """A tag that points to the build."""

    @property
    def is_snapshot(self) -> bool:
        """Whether it was taken from a sandbox."""
        return self.build.source_sandbox_id is not None

    @property
    def snapshot_id(self) -> str:
        """What the E2B API calls the snapshot; usable as a template."""
        return f"{next(iter(self.names), self.id)}:{self.tag}"

    @property
    def names(self) -> list[str]:
        """The names by which it can be found, beside its id."""
        if self.name is None:
            return []
        return [self.name if self.namespace is None else f"{self.namespace}/{self.name}"]

    @property
    def aliases(self) -> list[str]:
        """The names without their namespace."""
        return [] if self.name is None else [self.name]


@dataclass(frozen=True)
class TagAssignment:
    """A tag was pointed to a build."""

    id: str
    """UUID."""
    tag: str
    build_id: str
    assigned_at: float
    build_created_at: float


@dataclass(frozen=True)
class CreateSandbox:
    """A request for a new sandbox. `template` is an id, an alias or either with `:tag`."""

    template: str
    timeout: float
    auto_pause: bool
    auto_pause_memory: bool = True
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


@dataclass(frozen=True)
class Limits:
    """vCPUs and memory of guests; infinite where there is no limit."""

    cpus: float = math.inf
    memory_mib: float = math.inf


@dataclass(frozen=True)
class PoolCensus:
    """How a pool does."""

    size: int
    """How many are ready."""
    wanted: int
    """How many there should be by the demand of late."""
    hits: int
    """How often one was asked for and was there, since the server's start."""
    misses: int
    """How often one was asked for in vain."""
    given_up: int
    """How many ended for want of memory."""


@dataclass(frozen=True)
class Census:
    """How much there is of what, for the server's own metrics."""

    sandboxes: Mapping[str, int]
    """Sandboxes in each state, those with none included."""
    pools: Mapping[str, PoolCensus]
    """Machines and VMM processes kept for a quick start."""
    memory: Mapping[str, MemoryUse]
    """What the VMMs of running sandboxes and of each pool hold of the host's memory."""
    waiting: int
    """Starts that wait for their turn."""
    admitted: Limits
    """What the running sandboxes and those being started have together."""
    allowed: Limits
    """What they may have."""


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Where a running sandbox's ports are, and what its traffic needs."""

    host: str
    envd_token: str | None
    traffic_token: str | None
    mask_host: str | None = None
    """What applications see as `Host`, with `${PORT}` for the port; the client's own if None."""
    https_ports: frozenset[int] = frozenset()
    """Ports whose servers speak TLS."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the VM stops, is paused or dies: no packet will say so, so streams must be cut then."""
