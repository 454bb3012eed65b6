"""What the HTTP edge and the proxy ask of the sandbox service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aenv.errors import AenvError
from aenv.sandboxes.models import CreateSandbox, Endpoint, Sandbox, SandboxFilter, Template


class Sandboxes(Protocol):
    """Operations on sandboxes. Each runs to its end even if the caller goes away.

    Ids that can't exist raise `SandboxNotFound` like unknown ones. Timeouts are seconds and must be > 0
    and at most the configured longest, else `InvalidRequest`.
    """

    async def create(self, request: CreateSandbox) -> Sandbox:
        """Start a sandbox; returns when its agent has its identity. Raises `TemplateNotFound`."""

    async def get(self, sandbox_id: str) -> Sandbox:
        """The record of a running or paused sandbox."""

    async def list(self, query: SandboxFilter) -> Sequence[Sandbox]:
        """At most `query.limit` records in order."""

    async def connect(self, sandbox_id: str, timeout: float) -> tuple[Sandbox, bool]:
        """Resume if paused (then True); the deadline is only ever extended."""

    async def resume(self, sandbox_id: str, timeout: float, auto_pause: bool | None = None) -> Sandbox:
        """Resume a paused sandbox, with a new deadline. Raises `Conflict` if it runs."""

    async def pause(self, sandbox_id: str, *, require_healthy_guest: bool = False) -> None:
        """Capture and stop. Joins a pause under way; raises `Conflict` if already paused."""

    async def kill(self, sandbox_id: str) -> None:
        """Delete; waits for what is under way, then beats it."""

    async def set_timeout(self, sandbox_id: str, timeout: float) -> None:
        """Set the deadline to `timeout` from now; may shorten. Raises `Conflict` if paused."""

    async def refresh(self, sandbox_id: str, duration: float) -> None:
        """Extend the deadline to at least `duration` from now; never shortens."""

    async def fork(
        self, sandbox_id: str, count: int, timeout: float | None = None
    ) -> Sequence[Sandbox | AenvError]:
        """`count` children of a running sandbox, which goes on; one result each."""

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> Template:
        """A snapshot of a running sandbox, which goes on. Re-using a name repoints it."""

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Where to send traffic. Waits for what is under way; resumes a paused sandbox that allows it.

        Raises `SandboxNotFound` for unknown, lost and paused sandboxes.
        """

    def live_endpoint(self, sandbox_id: str) -> Endpoint | None:
        """The endpoint if the sandbox runs right now: the proxy's quick path."""


class Templates(Protocol):
    """Lookup and deletion of templates and snapshots."""

    async def find(self, name: str) -> Template:
        """By id or alias, with or without `:default`. Raises `TemplateNotFound`."""

    async def list(self, *, snapshots: bool) -> Sequence[Template]:
        """All templates, or all snapshots, newest first."""

    async def delete(self, name: str) -> None:
        """Delete a template or snapshot. Raises `TemplateNotFound`; `InvalidRequest` while it is in use."""
