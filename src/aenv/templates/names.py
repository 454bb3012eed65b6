"""Names of templates and snapshots: `[namespace/]alias[:tag]`, as in the E2B contract, in lower case."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from aenv import ids
from aenv.errors import InvalidRequest

TEAM = "default"
"""The one namespace of a deployment: E2B's team slug."""

DEFAULT_TAG = "default"
"""The tag of a name without one."""

_TAG = re.compile(r"[a-z0-9_.-]{1,128}")


@dataclass(frozen=True)
class Name:
    """An alias or an id, and the tag if one was given."""

    alias: str
    tag: str | None = None


def look_up(text: str) -> Name | None:
    """What to look for, or None for what can't exist. An id may stand for the alias."""
    namespace, name = _split(text)
    return name if namespace in {None, TEAM} else None


def parse(text: str) -> Name:
    """A name that something is to get. Raises InvalidRequest if it can't."""
    namespace, name = _split(text)
    if namespace not in {None, TEAM}:
        raise InvalidRequest(f"name: the namespace must be {TEAM!r} or absent, not {namespace!r}")
    if not ids.is_name(name.alias):
        raise InvalidRequest(
            f"name: {name.alias!r} is not made of 1 to 128 letters a-z, digits, '-' and '_' only"
        )
    return name if name.tag is None else Name(name.alias, parse_tag(name.tag))


def parse_tag(text: str) -> str:
    """A tag in its normal form. Raises InvalidRequest if it breaks the rules."""
    tag = text.strip().lower()
    if not _TAG.fullmatch(tag):
        raise InvalidRequest(
            f"tag: {text!r} is not made of 1 to 128 letters a-z, digits, '-', '_' and '.' only"
        )
    if _is_uuid(tag):
        raise InvalidRequest(f"tag: {text!r} is a UUID, which names a build")
    return tag


def _split(text: str) -> tuple[str | None, Name]:
    namespace, slash, rest = text.strip().lower().rpartition("/")
    alias, _, tag = rest.partition(":")
    return namespace if slash else None, Name(alias, tag or None)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
