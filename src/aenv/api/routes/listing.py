"""Lists of sandboxes, with the E2B contract's filters and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.responses import Response

from aenv.api.models import ListedSandbox
from aenv.api.paging import MAX_LIMIT, NEXT_TOKEN_HEADER, Cursor, Limit, NextToken, start
from aenv.errors import InvalidRequest
from aenv.sandboxes.base import Sandboxes
from aenv.sandboxes.models import Sandbox, SandboxFilter
from aenv.sandboxes.states import VISIBLE, State, public_state

PUBLIC_STATES = ("running", "paused")


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


def listing_router(sandboxes: Sandboxes) -> APIRouter:
    """`GET /sandboxes` (running ones, no pages) and `GET /v2/sandboxes`."""
    router = APIRouter()

    @router.get("/sandboxes")
    async def list_v1(metadata: str = "") -> list[ListedSandbox]:
        query = SandboxFilter(states=parse_states(["running"]), metadata=parse_metadata(metadata))
        return [ListedSandbox.of(sandbox) for sandbox in await _every_page(sandboxes, query)]

    @router.get("/v2/sandboxes")
    async def list_v2(
        response: Response,
        *,
        state: Annotated[Sequence[str], Query()] = (),
        metadata: str = "",
        order: Literal["asc", "desc"] = "desc",
        started_after: Annotated[AwareDatetime | None, Query(alias="startedAfter")] = None,
        template: str | None = None,
        limit: Limit = MAX_LIMIT,
        next_token: NextToken = None,
    ) -> list[ListedSandbox]:
        ascending = order == "asc"
        query = SandboxFilter(
            states=parse_states(state),
            metadata=parse_metadata(metadata),
            template=template or None,
            started_after=None if started_after is None else started_after.timestamp(),
            ascending=ascending,
            limit=limit + 1,  # one more tells whether there is a next page
            cursor=start(next_token, ascending=ascending),
        )
        found = await sandboxes.list(query)
        page = found[:limit]
        if len(found) > limit:
            response.headers[NEXT_TOKEN_HEADER] = Cursor(page[-1].started_at, page[-1].id, ascending).encode()
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
