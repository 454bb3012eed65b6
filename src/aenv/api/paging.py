"""Pages of lists: the opaque cursor between them and the header that carries it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Query

from aenv.errors import InvalidRequest

NEXT_TOKEN_HEADER = "x-next-token"  # noqa: S105 -- the name of a header
"""Absent on the last page."""

MAX_LIMIT = 100

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
NextToken = Annotated[str | None, Query(alias="nextToken", max_length=256)]

_TOKEN = re.compile(r"(?P<time>\d+\.\d+)__(?P<id>[a-z0-9-]+)(?P<ascending>__asc)?")

Item = TypeVar("Item")
Key = tuple[float, str]
"""Time and id of a record: the place after which a page starts."""


def seal_token(text: str) -> str:
    """A token that says `text` in a form that doesn't invite to be made by hand."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def open_token(token: str) -> str:
    """What `seal_token` was given; an empty text for what it can't have made."""
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:  # binascii.Error and UnicodeDecodeError are both ValueErrors
        return ""


@dataclass(frozen=True)
class Cursor:
    """The last record of a page, and in which direction the list runs."""

    time: float
    id: str
    ascending: bool = False

    def encode(self) -> str:
        """The token a client sends back."""
        text = f"{self.time!r}__{self.id}" + ("__asc" if self.ascending else "")
        return seal_token(text)

    @classmethod
    def decode(cls, token: str) -> Cursor:
        """Read a token. Raises `InvalidRequest` for what `encode` didn't make."""
        parts = _TOKEN.fullmatch(open_token(token))
        if parts is None:
            raise InvalidRequest("nextToken: not a token of this list")
        return cls(float(parts["time"]), parts["id"], parts["ascending"] is not None)


def start(token: str | None, *, ascending: bool) -> Key | None:
    """Where a page starts, or None for the first. A token of the other direction is refused."""
    if not token:
        return None
    cursor = Cursor.decode(token)
    if cursor.ascending != ascending:
        raise InvalidRequest("nextToken: made by a list with another order")
    return cursor.time, cursor.id


def newest_first(
    items: Sequence[Item], key: Callable[[Item], Key], *, limit: int, token: str | None
) -> tuple[list[Item], str | None]:
    """One page of `items` (any order) and the token of the next, by descending time, then id."""
    ordered = sorted(items, key=key, reverse=True)
    after = start(token, ascending=False)
    rest = ordered if after is None else [item for item in ordered if key(item) < after]
    page = rest[:limit]
    more = len(rest) > limit
    return page, Cursor(*key(page[-1])).encode() if more else None
