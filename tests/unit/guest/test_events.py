"""Events of a process are read as they are meant, and nonsense is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import RuntimeFailure
from aenv.guest.events import End, Event, Pty, Start, Stderr, Stdout, parse_event


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"start": {"pid": 42}}, Start(42)),
        ({"data": {"stdout": "aGk="}}, Stdout(b"hi")),
        ({"data": {"stderr": "/w=="}}, Stderr(b"\xff")),
        ({"data": {"pty": ""}}, Pty(b"")),
        ({"end": {"exited": True}}, End(0)),
        (
            {"end": {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}},
            End(3, "exit status 3", "exit status 3"),
        ),
        ({"keepalive": {}}, None),
        ({"of the future": {}}, None),
        ({"data": {"of the future": ""}}, None),
    ],
)
def test_events(event: dict[str, Any], expected: Event | None) -> None:
    assert parse_event({"event": event}) == expected


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"event": None},
        {"event": {"start": {}}},
        {"event": {"start": {"pid": "x"}}},
        {"event": {"data": {"stdout": 5}}},
        {"event": {"data": {"stdout": "a"}}},
        {"event": {"end": {"exitCode": "many"}}},
        {"event": {"end": []}},
    ],
)
def test_nonsense(message: dict[str, Any]) -> None:
    with pytest.raises(RuntimeFailure, match="can't be read"):
        parse_event(message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["start", "data", "end", "pid"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.just("event"), json_values))
def test_whatever_comes_is_an_event_or_refused(message: dict[str, Any]) -> None:
    with suppress(RuntimeFailure):
        parse_event(message)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (End(0), 0),
        (End(7, "exit status 7"), 7),
        (End(-1, "signal: killed"), 137),
        (End(-1, "signal: segmentation fault (core dumped)"), 139),
        (End(-1, "", "signal: terminated"), 143),
        (End(-1, "lost"), 1),
    ],
)
def test_exit_codes_as_a_shell_shows_them(end: End, code: int) -> None:
    assert end.shell_code == code
