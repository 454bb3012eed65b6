"""What a build is to do: where it begins, its steps, and what runs at its end."""

from __future__ import annotations

from dataclasses import dataclass

from aenv.images.models import Credentials
from aenv.templates.steps import Step


@dataclass(frozen=True)
class FromTemplate:
    """A template or snapshot of this node, perhaps at a tag."""

    name: str


@dataclass(frozen=True)
class FromImage:
    """A container image, and who pulls it."""

    reference: str
    credentials: Credentials | None


@dataclass(frozen=True)
class FromArchive:
    """A container image, or a root file system, in an archive that was uploaded."""

    files_hash: str
    tag: str | None
    """Which of several images; None if there is one."""
    is_root: bool
    """Take it as a root file system, whatever is in it."""


Origin = FromTemplate | FromImage | FromArchive


@dataclass(frozen=True)
class Plan:
    """What a build is to do."""

    origin: Origin
    steps: tuple[Step, ...] = ()
    start_command: str | None = None
    ready_command: str | None = None
    docker_defaults: bool = False
    """Where an image says nothing, its user is root and its working directory `/`."""
    force: bool = False
    """Do all steps, though their results are cached."""
