"""Schemathesis against a running server: what it was asked to look for, and what it found."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.schemas import BaseSchema

from tests.unit.api.support import fake_settings, running

UNCHECKED = {
    # A schema can't say which texts are tokens of this server, which templates exist, or what is refused
    # because this server doesn't do it yet.
    "positive_data_acceptance": {"enabled": False},
}


MOST = 0.7
"""Share of requests that name something that exists."""

RECENT = 3
"""How many of the newest things are named: older ones have been deleted perhaps."""

MOST_SANDBOXES = 50
"""Older ones are deleted: a server that is full would rightly refuse to start more."""


@dataclass(frozen=True)
class Target:
    """A server in a thread of its own."""

    url: str
    key: str


@contextmanager
def served(home: Path) -> Iterator[Target]:
    """A server on the fake runtime for the time of the block; Schemathesis blocks the thread it runs in."""
    started, stop = threading.Event(), threading.Event()
    found: list[Target] = []

    async def serve() -> None:
        async with running(fake_settings(home, hot_vms=0, bare_vms=0)) as server:
            found.append(Target(server.url, server.key))
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="server")
    thread.start()
    try:
        assert started.wait(30), "the server didn't start"
        yield found[0]
    finally:
        stop.set()
        thread.join()


def fuzz(
    target: Target, *, examples: int, seed: int, seconds: int | None = None, only: str | None = None
) -> tuple[list[str], dict[str, set[int]]]:
    """What went wrong, in words, and how each operation was answered.

    Every operation is tried with the corner cases of its parameters, with `examples` random requests, and in
    sequences in which one answer feeds the next request; then again until `seconds` are over, if given.
    """
    generation = {"max-examples": examples, "database": "none"}
    options: dict[str, Any] = {
        "seed": seed,
        "headers": {"X-API-KEY": target.key},
        "generation": generation,
        "checks": UNCHECKED,
        "phases": {"stateful": {"generation": generation}},
    }
    if seconds is not None:
        options["max-time"] = seconds
    config = SchemathesisConfig.from_dict(options)
    schema: BaseSchema = schemathesis.openapi.from_url(f"{target.url}/openapi.json", config=config)
    if only is not None:
        schema = schema.include(path=only)
    _Acquaintance(seed, target).install(schema)
    failures: list[str] = []
    answers: dict[str, set[int]] = {}
    for event in from_schema(schema).execute():
        failures += _failures(event)
        if isinstance(event, events.ScenarioFinished):
            for case, interaction in event.recorder.interactions.items():
                if interaction.response is not None:
                    label = event.recorder.cases[case].value.operation.label
                    answers.setdefault(label, set()).add(interaction.response.status_code)
    return failures, answers


class _Acquaintance:
    """Lets the search work with things that exist: random texts name none."""

    def __init__(self, seed: int, target: Target) -> None:
        self._target = target
        self._random = random.Random(seed)  # noqa: S311 -- to be had again
        self._known = {"sandbox_id": ["i0"], "name": ["base"], "alias": ["base"]}
        self._own: tuple[str, str] | None = None
        """A sandbox that nobody else knows, and a snapshot of it."""

    def install(self, schema: BaseSchema) -> None:
        """Hook into every request. Schemathesis marks the functions, so methods won't do."""

        @schema.hook
        def map_case(context: Any, case: Any) -> Any:
            self.introduce(case)
            return case

        @schema.hook
        def after_call(context: Any, case: Any, response: Any) -> None:
            self.remember(response)

    def introduce(self, case: Any) -> None:
        """Put the newest known names into most requests."""
        for name in self._known.keys() & (case.path_parameters or {}).keys():
            if self._random.random() < MOST:
                known = self._random.choice(self._known[name][-RECENT:])
                case.path_parameters[name] = quote(known, safe="")
        if isinstance(case.body, dict) and self._random.random() < MOST:
            for name in ("templateID", "target", "name"):
                if isinstance(text := case.body.get(name), str) and 0 < len(text) <= 256:
                    case.body[name] = "base"
            if isinstance(text := case.body.get("snapshotID"), str) and 0 < len(text) <= 256:
                self._own = self._own or self._snapshotted()
                case.path_parameters["sandbox_id"], case.body["snapshotID"] = self._own

    def remember(self, response: Any) -> None:
        """Remember what was made."""
        if response.status_code == 201:
            answer = response.json()
            self._known["sandbox_id"] += re.findall(r"'sandboxID': '(\w+)'", str(answer))
            self._known["name"] += re.findall(r"'snapshotID': '([\w/:-]+)'", str(answer))
            while len(self._known["sandbox_id"]) > MOST_SANDBOXES:
                self._delete(self._known["sandbox_id"].pop(0))

    def _snapshotted(self) -> tuple[str, str]:
        made = self._call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600}).json()
        sandbox_id = str(made["sandboxID"])
        snapshot = self._call("POST", f"/sandboxes/{sandbox_id}/snapshots", {}).json()
        return sandbox_id, str(snapshot["snapshotID"])

    def _delete(self, sandbox_id: str) -> None:
        answer = self._call("DELETE", f"/sandboxes/{sandbox_id}", None)
        assert answer.status_code in {204, 404}, answer.text

    def _call(self, method: str, path: str, body: Any) -> requests.Response:
        headers = {"X-API-KEY": self._target.key}
        return requests.request(method, self._target.url + path, json=body, headers=headers, timeout=60)


def _failures(event: Any) -> list[str]:
    if isinstance(event, events.NonFatalError):
        return [f"{event.label}: {event.value!r}"]
    if isinstance(event, events.FatalError):
        raise event.exception
    if not isinstance(event, events.ScenarioFinished):
        return []
    return [
        f"{event.recorder.cases[case].value.operation.label}: {check.name}: "
        f"{check.failure_info.failure.title}: {check.failure_info.failure.message}\n"
        f"{check.failure_info.code_sample}"
        for case, checks in event.recorder.checks.items()
        for check in checks
        if check.failure_info is not None
    ]
