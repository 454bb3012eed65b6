"""Accounts of a guest, changed as text: images differ in the tools for it, and many have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_FIRST_ID = 1000
_LAST_ID = 59999
"""User ids for people, as in Debian's and Alpine's `login.defs`."""


@dataclass(frozen=True)
class Accounts:
    """Content of `/etc/passwd`, `/etc/group`, `/etc/shadow` and `/etc/gshadow`; None for an absent file."""

    passwd: str | None
    group: str | None
    shadow: str | None
    gshadow: str | None

    def __contains__(self, name: str) -> bool:
        return name in {fields[0] for fields in _lines(self.passwd)}

    def with_user(self, name: str, shell: str) -> Accounts:
        """With a user of that name, without a password, and a group of its own."""
        groups = {fields[0]: fields[2] for fields in _lines(self.group) if len(fields) > 2}
        taken = {fields[2] for fields in (*_lines(self.passwd), *_lines(self.group)) if len(fields) > 2}
        number = next(str(each) for each in range(_FIRST_ID, _LAST_ID) if str(each) not in taken)
        group = self.group
        if name not in groups:
            group = _with(self.group or "root:x:0:\n", f"{name}:x:{number}:")
        entry = f"{name}:x:{number}:{groups.get(name, number)}::/home/{name}:{shell}"
        return Accounts(
            _with(self.passwd or "root:x:0:0:root:/root:/bin/sh\n", entry),
            group,
            None if self.shadow is None else _with(self.shadow, f"{name}:*:19000:0:99999:7:::"),
            self.gshadow if self.gshadow is None or name in groups else _with(self.gshadow, f"{name}:!::"),
        )


def _lines(text: str | None) -> Iterator[list[str]]:
    return (line.split(":") for line in (text or "").splitlines() if line and not line.startswith("#"))


def _with(text: str, line: str) -> str:
    return text + ("" if not text or text.endswith("\n") else "\n") + line + "\n"
