"""Changes to the files of a disk that no VM has open: functions that run with that disk as their root.

They run in a process of their own, so that what they read, which may be hostile, leads nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class EditRefused(Exception):
    """What an edit was given can't be applied; the message says why. Nobody keeps the disk then."""


@dataclass(frozen=True)
class Edit:
    """A call of a function in that process, whose root, and whose working directory, is the disk.

    The function gets `arguments`, `say` (call it with lines that tell how far it is), and each of `files`
    open for reading; what it returns is dropped. It raises EditRefused, or OSError if the disk fails it.
    """

    function: str
    """As `package.module:name`, imported before the root is changed; its modules should be few."""
    arguments: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    """Of the host, by the names of the function's parameters."""
    name: str = ""
    """What errors call it."""
