"""Lists of sandboxes: filters, order and pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import quote, unquote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.api.models import moment
from aenv.api.paging import Cursor, newest_first
from aenv.api.routes.listing import parse_metadata
from aenv.errors import InvalidRequest
from tests.unit.api.support import Server, is_error

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def sdk_metadata(pairs: Mapping[str, str]) -> str:
    """A metadata filter as the E2B SDKs make it, before the HTTP library quotes it."""
    return urlencode({quote(key): quote(value) for key, value in pairs.items()})


@given(st.dictionaries(TEXTS, TEXTS, max_size=4))
def test_metadata_survives_the_sdks_double_quoting(pairs: dict[str, str]) -> None:
    assert parse_metadata(unquote_plus(quote(sdk_metadata(pairs)))) == pairs


@given(st.floats(1, 4e9), st.from_regex("[a-z0-9]{1,30}", fullmatch=True), st.booleans())
def test_cursor_round_trip(time: float, identifier: str, ascending: bool) -> None:
    cursor = Cursor(time, identifier, ascending)
    assert Cursor.decode(cursor.encode()) == cursor


@given(st.floats(1.5e9, 4e9))
def test_what_started_then_has_started_after_it(seconds: float) -> None:
    assert moment(seconds).timestamp() <= seconds < moment(seconds).timestamp() + 2e-6


@given(st.text())
def test_cursor_takes_any_text(token: str) -> None:
    try:
        Cursor.decode(token)
    except InvalidRequest as error:
        assert error.status == 400  # noqa: PT017 -- either outcome is right, another error isn't


@given(
    st.lists(
        st.tuples(st.integers(0, 5).map(float), st.from_regex("[a-z]{1,3}", fullmatch=True)), unique=True
    )
)
def test_pages_together_are_the_whole_list(items: list[tuple[float, str]]) -> None:
    found: list[tuple[float, str]] = []
    token: str | None = None
    while True:
        page, token = newest_first(items, lambda item: item, limit=2, token=token)
        found += page
        if token is None:
            break
    assert found == sorted(items, reverse=True)


@pytest.mark.asyncio(loop_scope="module")
class TestRoutes:
    """The two generations of the route, on a server with a handful of sandboxes."""

    async def test_filters_order_and_pages(self, server: Server) -> None:
        ids = [await server.create(metadata={"a b": "c&d", "n": str(n)}) for n in range(5)]
        other = await server.create(metadata={"a b": "other"})
        await server.request("POST", f"/sandboxes/{ids[1]}/pause")

        async def listed(query: str, path: str = "/v2/sandboxes") -> list[str]:
            answer = await server.request("GET", f"{path}?{query}")
            assert answer.status == 200, answer
            return [sandbox["sandboxID"] for sandbox in answer.body]

        mine = "metadata=" + quote(sdk_metadata({"a b": "c&d"}))
        assert await listed(mine) == ids[::-1]
        assert await listed(mine + "&order=asc") == ids
        assert await listed(mine + "&state=paused") == [ids[1]]
        assert set(await listed(mine + "&state=running")) == set(ids) - {ids[1]}
        assert await listed(mine + "&state=running%2Cpaused&order=asc") == ids
        assert await listed(mine + "&state=running&state=paused&order=asc") == ids
        assert await listed(mine + "&template=base&order=asc") == ids
        assert await listed(mine + "&template=nix") == []
        assert await listed(mine + "&template=default%2Fbase") == ids[::-1]
        assert await listed(mine + "&template=other%2Fbase") == []
        assert await listed(mine, "/sandboxes") == [i for i in ids[::-1] if i != ids[1]]
        assert other not in await listed(mine)

        third = (await server.request("GET", f"/sandboxes/{ids[3]}")).body["startedAt"]
        assert await listed(mine + "&order=asc&startedAfter=" + quote(third)) == ids[3:]
        assert await listed(mine + "&startedAfter=2099-01-01T00%3A00%3A00%2B00%3A00") == []

        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            pages, token = [], ""
            while True:
                query = f"{mine}&order={order}&limit=2" + (f"&nextToken={quote(token)}" if token else "")
                answer = await server.request("GET", f"/v2/sandboxes?{query}")
                pages.append([sandbox["sandboxID"] for sandbox in answer.body])
                token = answer.headers.get("x-next-token", "")
                if not token:
                    break
            assert [len(page) for page in pages] == [2, 2, 1]
            assert [found for page in pages for found in page] == expected

    async def test_total_of_the_running(self, server: Server) -> None:
        ids = [await server.create(metadata={"total": "yes"}) for _ in range(3)]
        await server.request("POST", f"/sandboxes/{ids[0]}/pause")
        for query, total in (
            ("metadata=total%3Dyes", "2"),
            ("metadata=total%3Dyes&limit=1", "2"),
            ("metadata=total%3Dyes&state=running&limit=1", "2"),
            ("metadata=total%3Dno", "0"),
            ("metadata=total%3Dyes&state=paused", None),
        ):
            answer = await server.request("GET", f"/v2/sandboxes?{query}")
            assert answer.headers.get("X-Total-Running") == total

    @pytest.mark.parametrize(
        ("query", "word"),
        [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("state=dead", "state"),
            ("order=up", "order"),
            ("startedAfter=yesterday", "startedAfter"),
            ("startedAfter=2026-01-01T00:00:00", "startedAfter"),
            ("nextToken=x", "nextToken"),
            ("nextToken=" + Cursor(1.0, "a", ascending=True).encode(), "nextToken"),
        ],
    )
    async def test_wrong_queries_are_named(self, server: Server, query: str, word: str) -> None:
        assert is_error(await server.request("GET", f"/v2/sandboxes?{query}"), 400, word)

    async def test_v1_shows_more_than_a_page(self, server: Server) -> None:
        created: list[str] = []
        while len(created) < 103:  # not all at once: no more may be waiting than the queue holds
            created += await asyncio.gather(*(server.create(metadata={"many": "1"}) for _ in range(40)))
        answer = await server.request("GET", "/sandboxes?metadata=many%3D1")
        assert {sandbox["sandboxID"] for sandbox in answer.body} == set(created)
