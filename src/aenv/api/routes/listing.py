"""Lists of sandboxes, with the E2B contract's filters and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BeforeValidator
from starlette.responses import Response

from aenv.api.models import ListedSandbox
from aenv.api.paging import MAX_LIMIT, NEXT_TOKEN_HEADER, Cursor, Limit, NextToken, start
from aenv.errors import InvalidRequest
from aenv.sandboxes.base import Sandboxes
from aenv.sandboxes.models import Sandbox, SandboxFilter
from aenv.sandboxes.states import VISIBLE, State, public_state
from aenv.templates.names import look_up

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

PUBLIC_STATES = ("running", "paused")


TOTAL_RUNNING_HEADER = "X-Total-Running"
"""How many running sandboxes match, on all pages together; absent if only paused ones were asked for."""


def _rfc3339(text: str) -> str:
    if _RFC3339.fullmatch(text) is None:
        raise ValueError("must be a time like 2026-01-31T12:00:00Z")
    return text


Moment = Annotated[AwareDatetime, BeforeValidator(_rfc3339)]
"""pydantic by itself would take a bare number too."""


def parse_states(values: Iterable[str]) -> frozenset[State]:
    """The states that `state=running,paused` (comma-joined or repeated) names; all of them if empty."""
    names = {name for value in values for name in value.split(",") if name}
    unknown = names.difference(PUBLIC_STATES)
    if unknown:
        raise InvalidRequest(f"state: {min(unknown)!r} is none of {', '.join(PUBLIC_STATES)}")
    return frozenset(state for state in VISIBLE if not names or public_state(state) in names)


def parse_metadata(text: str) -> dict[str, str]:
    """The pairs of a metadata filter.

    SDKs quote each key and value, join them as a query string and let the HTTP library quote that once
    more, so `text` (with the query's own quoting undone) needs two more rounds.
    """
    pairs = parse_qsl(text, keep_blank_values=True, separator="&")
    return {unquote(name): unquote(value) for name, value in pairs}


def _template(text: str | None) -> str | None:
    """The id or alias that a filter means; with a foreign namespace one that nothing has."""
    if not text:
        return None
    name = look_up(text)
    return text if name is None else name.alias


def listing_router(sandboxes: Sandboxes) -> APIRouter:
    """`GET /sandboxes` (running ones, no pages) and `GET /v2/sandboxes`."""
    router = APIRouter()
    header = {"description": "running sandboxes that match, on all pages", "schema": {"type": "integer"}}
    totals: dict[int | str, dict[str, Any]] = {200: {"headers": {TOTAL_RUNNING_HEADER: header}}}

    @router.get("/sandboxes")
    async def list_v1(metadata: str = "") -> list[ListedSandbox]:
        query = SandboxFilter(states=parse_states(["running"]), metadata=parse_metadata(metadata))
        return [ListedSandbox.of(sandbox) for sandbox in await _every_page(sandboxes, query)]

    @router.get("/v2/sandboxes", responses=totals)
    async def list_v2(
        response: Response,
        *,
        state: Annotated[Sequence[str], Query()] = (),
        metadata: str = "",
        order: Literal["asc", "desc"] = "desc",
        started_after: Annotated[Moment | None, Query(alias="startedAfter")] = None,
        template: str | None = None,
        limit: Limit = MAX_LIMIT,
        next_token: NextToken = None,
    ) -> list[ListedSandbox]:
        ascending = order == "asc"
        query = SandboxFilter(
            states=parse_states(state),
            metadata=parse_metadata(metadata),
            template=_template(template),
            started_after=None if started_after is None else started_after.timestamp(),
            ascending=ascending,
            limit=limit + 1,  # one more tells whether there is a next page
            cursor=start(next_token, ascending=ascending),
        )
        found = await sandboxes.list(query)
        page = found[:limit]
        if len(found) > limit:
            response.headers[NEXT_TOKEN_HEADER] = Cursor(page[-1].started_at, page[-1].id, ascending).encode()
        running = query.states & parse_states(["running"])
        if running:
            total = await sandboxes.count(replace(query, states=running))
            response.headers[TOTAL_RUNNING_HEADER] = str(total)
        return [ListedSandbox.of(sandbox) for sandbox in page]

    return router


async def _every_page(sandboxes: Sandboxes, query: SandboxFilter) -> list[Sandbox]:
    """All that match `query`, page by page."""
    found: list[Sandbox] = []
    while True:
        page = await sandboxes.list(query)
        found.extend(page)
        if len(page) < query.limit:
            return found
        query = replace(query, cursor=(page[-1].started_at, page[-1].id))
