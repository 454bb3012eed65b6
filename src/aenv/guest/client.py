"""The client of one guest's envd, used by the server (directly) and by the CLI (through the proxy)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from aenv.errors import GuestUnresponsive
from aenv.guest import connect
from aenv.guest.files import Files
from aenv.guest.processes import Processes
from aenv.guest.reports import PAGE_BYTES, JournalPage, Metrics, parse_journal, parse_metrics

CALL_TIMEOUT = 30.0
"""Longest wait for the answer of a short call, seconds."""
LATE = 0.5
"""Seconds by which a guest's clock may be late because its host was busy."""
VERSION_HEADER = "X-Envd-Version"

_POLL_FIRST, _POLL_LONGEST = 0.004, 0.05
_CONNECT_FIRST, _CONNECT_LONGEST = 0.1, 0.5
# A lost SYN is sent again by the kernel only after 1 s: a new connection is quicker.

_NO_AUTO_HEADERS = frozenset({"User-Agent", "Accept", "Accept-Encoding"})


@dataclass(frozen=True)
class InitRequest:
    """A guest's identity and what its processes see.

    `timestamp` in ns since the epoch; None takes the time of sending. Every restore needs fresh `entropy`.
    """

    sandbox_id: str
    template_id: str
    access_token: str | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    hostname: str | None = None
    default_user: str | None = None
    default_workdir: str | None = None
    timestamp: int | None = None
    entropy: bytes = field(default_factory=lambda: os.urandom(64), repr=False)

    def fields(self) -> dict[str, Any]:
        """The JSON object that `POST /init` takes."""
        named = {
            "sandboxId": self.sandbox_id,
            "templateId": self.template_id,
            "accessToken": self.access_token,
            "envVars": dict(self.env_vars),
            "hostname": self.hostname,
            "defaultUser": self.default_user,
            "defaultWorkdir": self.default_workdir,
            "timestamp": time.time_ns() if self.timestamp is None else self.timestamp,
            "entropy": base64.b64encode(self.entropy).decode(),
        }
        return {name: value for name, value in named.items() if value is not None}


def new_session() -> aiohttp.ClientSession:
    """A session fit for guests: any number of connections; no cookies, redirects or proxy."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3600.0, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_NO_AUTO_HEADERS,
        read_bufsize=256 * 1024,
        trust_env=False,
        middlewares=(_refuse_redirect,),
    )


async def _refuse_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """No agent redirects. A guest that does wants us to call, with our rights, what it can't reach itself."""
    response = await handler(request)
    if 300 <= response.status < 400:
        response.close()
        raise aiohttp.ClientError(f"a redirect, status {response.status}")
    return response


class EnvdClient:
    """Talks to envd at `base_url`.

    Without a `session` it owns one: its keep-alive connections then end with `close`, which belongs to
    the end of the instance (a restored guest doesn't know connections of its past). `token` is the
    access token, `headers` are sent with every request, `user` is whose processes and files are meant.

    Every method raises GuestError for what envd refuses, GuestUnresponsive if it doesn't answer within
    bounds, and RuntimeFailure if it answers nonsense.
    """

    def __init__(
        self,
        base_url: str,
        *,
        session: aiohttp.ClientSession | None = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float = CALL_TIMEOUT,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._owned = session is None
        self._timeout = timeout
        self.session = session or new_session()
        self.user = user
        self.headers: dict[str, str] = dict(headers or {})
        if token:
            self.headers["X-Access-Token"] = token
        self.processes = Processes(self)
        self.files = Files(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections, unless the session is somebody else's. Idempotent."""
        if self._owned:
            await self.session.close()

    def set_token(self, token: str | None) -> None:
        """Use another access token from now on, as after an `init` that set one."""
        if token:
            self.headers["X-Access-Token"] = token
        else:
            self.headers.pop("X-Access-Token", None)

    def url(self, route: str) -> str:
        """The URL of a route or procedure, given without its leading slash."""
        return f"{self._base}/{route}"

    async def health(self, *, timeout: float = 5.0) -> str | None:
        """Whether envd answers; its version if it says one."""
        return await self._health(connect.timeouts(timeout))

    async def _health(self, limits: aiohttp.ClientTimeout) -> str | None:
        async with (
            connect.guest_errors("health"),
            self.session.get(self.url("health"), headers=self.headers, timeout=limits) as response,
        ):
            await connect.check(response, 204)
            return response.headers.get(VERSION_HEADER)

    async def wait_healthy(self, timeout: float) -> str | None:
        """Ask until envd answers, at first every few milliseconds; its version.

        Raises GuestUnresponsive after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        pause, patience = _POLL_FIRST, _CONNECT_FIRST
        while True:
            left = end - loop.time()
            try:
                return await self._health(connect.timeouts(max(left, 0.001), patience))
            except GuestUnresponsive as error:
                if end - loop.time() <= pause:
                    raise GuestUnresponsive(f"the guest agent didn't answer within {timeout:g} s") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL_LONGEST)
            patience = min(2 * patience, _CONNECT_LONGEST)

    async def init(self, request: InitRequest, *, timeout: float = CALL_TIMEOUT) -> None:
        """Give the guest its identity, time and entropy, and let the user's processes run.

        A guest that took long to read the request, because the host is busy, is told the time once more.
        """
        begin = time.monotonic()
        await self._post("init", request.fields(), timeout)
        if request.timestamp is None and time.monotonic() - begin > LATE:
            await self.unfreeze(set_clock=True, timeout=timeout)

    async def freeze(self, *, timeout: float = 5.0) -> None:
        """Stop the user's processes and make ready for a capture. Idempotent."""
        await self._post("freeze", None, timeout)

    async def sync(self, *, timeout: float = CALL_TIMEOUT) -> None:
        """`freeze`, then put all that was written on the disk, which stays so until `unfreeze`."""
        await self._post("sync", None, timeout)

    async def unfreeze(self, *, set_clock: bool = False, timeout: float = 5.0) -> None:
        """Let the user's processes run again; `set_clock` tells the guest the time before. Idempotent."""
        await self._post("unfreeze", {"timestamp": time.time_ns()} if set_clock else None, timeout)

    async def grow(self, *, timeout: float = CALL_TIMEOUT) -> None:
        """Make the root file system as large as its disk."""
        await self._post("grow", None, timeout)

    async def warm(self, request: InitRequest, *, timeout: float = CALL_TIMEOUT) -> None:
        """Let a captured guest rehearse an `init` and a command, so that the real ones are quick."""
        await self._post("warm", request.fields(), timeout)

    async def _post(self, route: str, fields: Mapping[str, Any] | None, timeout: float) -> None:
        body = b"" if fields is None else json.dumps(fields, separators=(",", ":")).encode()
        sent = {**self.headers, "Content-Type": "application/json"} if fields is not None else self.headers
        limits = connect.timeouts(timeout)
        async with connect.guest_errors(route):
            try:
                response = await self.session.post(self.url(route), data=body, headers=sent, timeout=limits)
            except aiohttp.ServerDisconnectedError:
                # A kept connection that the guest had closed. These routes may be repeated; aiohttp
                # itself repeats only GET and the like.
                response = await self.session.post(self.url(route), data=body, headers=sent, timeout=limits)
            async with response:
                await connect.check(response, 204, 200)

    async def metrics(self, *, timeout: float = CALL_TIMEOUT) -> Metrics:
        """The use of CPU, memory and disk."""
        return parse_metrics(await self._report("metrics", {}, connect.ERROR_BODY, timeout))

    async def logs(self, journal: str, after: int, *, timeout: float = CALL_TIMEOUT) -> JournalPage:
        """What the guest's journal got after that sequence number; all of it if it is another journal."""
        query = {"journal": journal, "after": str(after)}
        return parse_journal(await self._report("logs", query, PAGE_BYTES, timeout))

    async def _report(
        self, route: str, query: Mapping[str, str], limit: int, timeout: float
    ) -> dict[str, Any]:
        limits = connect.timeouts(timeout)
        async with (
            connect.guest_errors(route),
            self.session.get(self.url(route), params=query, headers=self.headers, timeout=limits) as response,
        ):
            await connect.check(response, 200)
            return connect.parse(await connect.read_bounded(response, limit), route)

    async def call(
        self, procedure: str, message: Mapping[str, Any], *, user: str | None = None
    ) -> dict[str, Any]:
        """One unary Connect call, for example of `process.Process/List`."""
        return await connect.unary(
            self.session, self.url(procedure), message, self._headers_for(user), self._timeout
        )

    async def stream(
        self,
        procedure: str,
        message: Mapping[str, Any],
        *,
        user: str | None = None,
        deadline: float | None = None,
    ) -> connect.MessageStream:
        """Open a Connect server stream; the caller closes it."""
        return await connect.MessageStream.open(
            self.session, self.url(procedure), message, self._headers_for(user), deadline=deadline
        )

    def _headers_for(self, user: str | None) -> dict[str, str]:
        name = user or self.user
        if name is None:
            return self.headers
        basic = base64.b64encode(f"{name}:".encode()).decode()
        return {**self.headers, "Authorization": f"Basic {basic}"}
