"""Every error a user can meet, with its HTTP status and whether a retry is safe.

AenvError
├── InvalidRequest        400  the request is wrong; sending it again can't help
│   └── ImageUnusable          an image can't be used: refused, damaged, not for this machine
│       └── ImageMissing       its registry doesn't have it, or not for who asked
├── Unauthorized          401  missing or wrong API key or token
├── NotFound              404
│   ├── SandboxNotFound
│   │   ├── SandboxLost            its VM ended; the message says why
│   │   └── SandboxNotRunning      it is paused, and the operation is for running ones
│   ├── TemplateNotFound
│   └── SnapshotNotFound
├── Conflict              409  the sandbox is in a state that doesn't allow this
│   └── ResumeRefused          its memory was kept while envd didn't answer: only its disk is of use
├── PauseRefused          503  envd doesn't answer, and the caller wants no pause then
├── KeyReused             422  an Idempotency-Key that belongs to another request
├── GuestUnresponsive     500  envd doesn't answer
├── RuntimeFailure        500  the VMM failed
├── StorageFailure        500  what is on the host's disk can't be read, or it can't be written
│   └── NoSpace           507  the host's disk is full
├── HostNotReady          500  a tool, a device or a permission is missing on the host
├── RegistryUnavailable   502  an image's registry can't be reached, or it fails
├── LimitReached          429  no more sandboxes may run than run already
├── Overloaded            503  try again after `retry_after`
└── ShuttingDown          503  the server is stopping

An error is turned into JSON in one place, `aenv.api.errors`.
"""

from __future__ import annotations

from enum import StrEnum


class Retry(StrEnum):
    """What a client may conclude from a failure."""

    TRANSIENT = "transient"
    """Nothing happened; the same request may work later."""
    PERMANENT = "permanent"
    """Nothing happened, and the same request will fail again."""
    UNKNOWN = "unknown"
    """The operation may have happened; look before sending it again."""


class AenvError(Exception):
    """Base of all errors; `str(error)` is the message for the user."""

    status = 500
    retry = Retry.UNKNOWN
    error_code: str | None = None
    """Machine-readable code beyond the status, where the E2B contract defines one."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds after which a retry is likely to work, if known."""


class InvalidRequest(AenvError):
    """The request can't be served as it is."""

    status = 400
    retry = Retry.PERMANENT


class ImageUnusable(InvalidRequest):
    """A container image can't be had or used; the message says which and why."""


class ImageMissing(ImageUnusable):
    """A registry says that there is no such image, or none for who asks."""


class Unauthorized(AenvError):
    """A missing or wrong key or token."""

    status = 401
    retry = Retry.PERMANENT


class NotFound(AenvError):
    """The thing named doesn't exist."""

    status = 404
    retry = Retry.PERMANENT


class SandboxNotFound(NotFound):
    """No running or paused sandbox has this id."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(f"sandbox {sandbox_id!r} was not found")


class SandboxLost(SandboxNotFound):
    """The VM of the sandbox ended. To E2B there is no such sandbox; the message, which is ours, says why."""

    def __init__(self, sandbox_id: str, reason: str) -> None:
        NotFound.__init__(self, f"sandbox {sandbox_id!r} was not found: it is lost: {reason}")


class SandboxNotRunning(SandboxNotFound):
    """The sandbox is paused. E2B looks for it among the running ones only, so it isn't found."""

    def __init__(self, sandbox_id: str) -> None:
        NotFound.__init__(
            self, f"sandbox {sandbox_id!r} was not found among the running ones: resume it first"
        )


class TemplateNotFound(NotFound):
    """No template or snapshot has this id or alias."""

    def __init__(self, name: str) -> None:
        super().__init__(f"template {name!r} was not found")


class SnapshotNotFound(NotFound):
    """No snapshot has this id or name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"snapshot {name!r} was not found")


class Conflict(AenvError):
    """The sandbox's state doesn't allow the operation."""

    status = 409
    retry = Retry.PERMANENT


class ResumeRefused(Conflict):
    """The memory of a paused sandbox holds an agent that didn't answer; a reboot from disk is possible."""

    error_code = "sandbox_snapshot_guest_agent_unresponsive"


class PauseRefused(AenvError):
    """The agent doesn't answer, so what the caller asked for would not be whole. Nothing has changed."""

    status = 503
    retry = Retry.TRANSIENT


class KeyReused(AenvError):
    """An idempotency key came with another request than the first time."""

    status = 422
    retry = Retry.PERMANENT

    def __init__(self, key: str) -> None:
        super().__init__(f"Idempotency-Key: {key!r} was used for another request: take a new key")


class GuestUnresponsive(AenvError):
    """The guest agent doesn't answer in time."""


class RuntimeFailure(AenvError):
    """A virtual machine monitor failed or ended."""


class VmmUnresponsive(RuntimeFailure):
    """A virtual machine monitor didn't answer in time. What it was told to do, it may still do."""


class StorageFailure(AenvError):
    """What is on the host's disk can't be read, or it can't be written; the message says which."""


class NoSpace(StorageFailure):
    """The host's disk is full. Nothing has changed."""

    status = 507
    retry = Retry.TRANSIENT


class HostNotReady(AenvError):
    """The host lacks a tool, a device or a permission; the message says how to get it."""

    retry = Retry.PERMANENT


class RegistryUnavailable(AenvError):
    """A registry can't be reached or fails. What was downloaded is kept for the next try."""

    status = 502
    retry = Retry.TRANSIENT


class LimitReached(AenvError):
    """What may run here at a time runs already: others must end or be paused first."""

    status = 429
    retry = Retry.TRANSIENT


class Overloaded(AenvError):
    """The server is too busy now, or its host is short of memory."""

    status = 503
    retry = Retry.TRANSIENT


class ShuttingDown(AenvError):
    """The server is stopping and takes no new work."""

    status = 503
    retry = Retry.TRANSIENT

    def __init__(self) -> None:
        super().__init__("the server is shutting down", retry_after=5)
