"""What the HTTP edge and the proxy ask of the sandbox service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aenv.errors import AenvError
from aenv.sandboxes.models import (
    Build,
    Census,
    CreateSandbox,
    Endpoint,
    Sandbox,
    SandboxFilter,
    TagAssignment,
    Template,
)


class Sandboxes(Protocol):
    """Operations on sandboxes. Each runs to its end even if the caller goes away.

    Ids that can't exist raise `SandboxNotFound` like unknown ones. Timeouts are seconds and must be > 0
    and at most the configured longest, else `InvalidRequest`.
    """

    async def create(self, request: CreateSandbox, key: str | None = None) -> Sandbox:
        """Start a sandbox; returns when its agent has its identity. Raises `TemplateNotFound`.

        With a `key` the same request makes one sandbox in a day, and gets the same answer each time; another
        request raises `KeyReused`.
        """

    async def get(self, sandbox_id: str) -> Sandbox:
        """The record of a running or paused sandbox."""

    async def list(self, query: SandboxFilter) -> Sequence[Sandbox]:
        """At most `query.limit` records in order."""

    async def count(self, query: SandboxFilter) -> int:
        """How many records match, on all pages together."""

    async def census(self) -> Census:
        """How many sandboxes are in each state, and how many spare machines in each pool."""

    async def connect(self, sandbox_id: str, timeout: float, *, memory: bool = True) -> tuple[Sandbox, bool]:
        """Resume if paused (then True); the deadline is only ever extended.

        Without `memory` a paused sandbox is booted from its disk. Raises `ResumeRefused`.
        """

    async def resume(
        self, sandbox_id: str, timeout: float, auto_pause: bool | None = None, *, memory: bool = True
    ) -> Sandbox:
        """Resume a paused sandbox as `connect` does, with a new deadline. Raises `Conflict` if it runs."""

    async def pause(
        self, sandbox_id: str, *, memory: bool = True, require_healthy_guest: bool = False
    ) -> None:
        """Capture and stop. Joins such a pause under way; raises `Conflict` if already paused.

        Without `memory` only the disk is kept, whole: that needs a healthy guest. Raises `PauseRefused`
        if a healthy guest is needed and there is none.
        """

    async def kill(self, sandbox_id: str) -> None:
        """Delete; waits for what is under way, then beats it."""

    async def set_timeout(self, sandbox_id: str, timeout: float) -> None:
        """Set the deadline to `timeout` from now; may shorten. Raises `SandboxNotRunning`."""

    async def refresh(self, sandbox_id: str, duration: float) -> None:
        """Extend the deadline to at least `duration` from now; never shortens. Raises `SandboxNotRunning`."""

    async def fork(
        self, sandbox_id: str, count: int, timeout: float | None = None
    ) -> Sequence[Sandbox | AenvError]:
        """`count` children of a running sandbox, which goes on; one result each.

        Raises `PauseRefused` if its agent doesn't answer, and `SandboxNotRunning`.
        """

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, memory: bool = True) -> Template:
        """A snapshot of a running sandbox, which goes on. Re-using a name repoints it.

        What is started from one without `memory` boots. Raises `PauseRefused` if its agent doesn't answer,
        and `SandboxNotRunning`.
        """

    async def roll_back(self, sandbox_id: str, snapshot: str) -> None:
        """Put a running sandbox back, in place, to a snapshot that was taken from it.

        Raises `SnapshotNotFound`, `InvalidRequest` for a snapshot of another sandbox, `Conflict` if paused.
        After a failure the sandbox runs on as before.
        """

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        """Where to send traffic. Waits for what is under way; resumes a paused sandbox that allows it.

        Raises `SandboxNotFound` for unknown, lost and paused sandboxes.
        """

    def live_endpoint(self, sandbox_id: str) -> Endpoint | None:
        """The endpoint if the sandbox runs right now: the proxy's quick path."""


class Templates(Protocol):
    """Templates and snapshots. Those that take a name raise `TemplateNotFound`.

    A name is an id or `[namespace/]alias`, perhaps with `:tag`. Without a tag it is seen at the build of the
    tag `default`, or of the newest if that doesn't exist.
    """

    async def find(self, name: str) -> Template:
        """By id or name, at its tag."""

    async def list(self, *, snapshots: bool) -> Sequence[Template]:
        """All templates, or all snapshots (one for each build), newest first."""

    async def builds(self, name: str) -> tuple[Template, Sequence[Build]]:
        """A template and those of its builds that a tag points to, newest first."""

    async def set_public(self, name: str, public: bool) -> Template:
        """Show a template as public, or not. There is one team, so it changes nothing else."""

    async def delete(self, name: str) -> None:
        """Delete a template or snapshot; with a tag in the name, only the build to which it points.

        Raises `InvalidRequest` while sandboxes that were started from it exist, as E2B does.
        """

    async def assign_tags(self, target: str, wanted: Sequence[str]) -> tuple[Build, Sequence[str]]:
        """Point tags to the build that `target` names; answers with it and the tags in normal form.

        Raises `InvalidRequest` for tags that break the rules.
        """

    async def remove_tags(self, name: str, unwanted: Sequence[str]) -> None:
        """Remove tags, those included that don't exist; a build without tags goes.

        Raises `InvalidRequest` for `default`.
        """

    async def tags(self, name: str) -> Sequence[TagAssignment]:
        """What the tags of a template point to, the latest first."""

    async def assignments(self, name: str) -> Sequence[TagAssignment]:
        """The history of all tags of a template, the latest first."""
