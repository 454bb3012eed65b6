"""One HTTP request through the proxy, streaming both ways."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope, Send

from aenv.errors import InvalidRequest
from aenv.proxy.connection import Connection, UpstreamLost, other_coding
from aenv.proxy.headers import Header, masked_host, request_headers, response_headers
from aenv.proxy.pool import Pool
from aenv.proxy.routing import Route
from aenv.sandboxes.models import Endpoint

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that may be sent again, without a body, when a reused connection turns out to be closed."""


class AnswerUnreadable(Exception):
    """The sandbox took the request and gave no answer that could be sent on; nothing was sent on."""


class BodyStalled(Exception):
    """The client sent no more of the request's body, and is still there; nothing was sent on."""


class ClientGone(Exception):
    """The client went away; nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a sandbox, HTTP or WebSocket, and the server's own key, which must not reach it."""

    scope: Scope
    receive: Receive
    send: Send
    route: Route
    api_key: bytes


class Exchange:
    """Carries one request to a sandbox and its answer back.

    One task reads from the client for as long as the exchange lasts: first the body, then to notice that
    the client goes away. That breaks off the connection to the sandbox, so that its server notices too.
    """

    def __init__(
        self, request: Request, pool: Pool, endpoint: Endpoint, max_idle: float | None = None
    ) -> None:
        """`max_idle`: seconds that the client may keep a sandbox waiting for more of the body."""
        self._scope = request.scope
        self._receive = request.receive
        self._send = request.send
        self._request = request
        self._pool = pool
        self._endpoint = endpoint
        self._max_idle = max_idle
        self._body_sent = False
        self._body_stalled = False
        self._client_gone = False

    async def run(self) -> None:
        """Do it all. If this returns with the answer incomplete, it broke off and so must the client's.

        Raises `AnswerUnreadable`, `BodyStalled`, `ClientGone`, `InvalidRequest`, or what `Pool.connect` does
        if there is no connection; nothing was sent to the client then.
        """
        route = self._request.route
        if (coding := other_coding(self._scope["headers"])) is not None:
            raise InvalidRequest(f"Transfer-Encoding: {coding!r}: only 'chunked' is served")
        mask = masked_host(self._endpoint, route.port)
        headers = request_headers(self._scope, self._request.api_key, mask)
        chunked = _is_chunked(self._scope)
        bodyless = not chunked and not _has_length(headers)
        head = _head(self._scope, route.path, headers, chunked=chunked)
        method = self._scope["method"]
        connection = self._pool.reuse(self._endpoint, route.port)
        if connection is not None:
            again = bodyless and method in _REPEATABLE
            if await self._attempt(connection, head, chunked=chunked, may_fail=again):
                return
        connection = await self._pool.connect(self._endpoint, route.port)
        await self._attempt(connection, head, chunked=chunked, may_fail=False)

    async def _attempt(self, connection: Connection, head: bytes, *, chunked: bool, may_fail: bool) -> bool:
        """One try. False if `may_fail` and the connection was closed before anything came back."""
        reader: asyncio.Task[None] | None = None
        try:
            connection.begin(self._scope["method"].encode(), head)
            reader = asyncio.create_task(self._read_client(connection, chunked=chunked))
            answer = await connection.head()
            if answer.status > 599:
                raise AnswerUnreadable(f"status {answer.status}")
            await self._respond(connection, answer.status, answer.headers)
        except UpstreamLost as lost:
            if self._client_gone:
                raise ClientGone from lost
            if self._body_stalled:
                raise BodyStalled from lost
            if may_fail and not connection.answered:
                return False
            raise AnswerUnreadable(str(lost)) from lost
        finally:
            if reader is not None and not reader.done():
                reader.cancel()
                await asyncio.wait([reader])
            port = self._request.route.port
            self._pool.release(self._endpoint, port, connection, request_sent=self._body_sent)
        return True

    async def _respond(self, connection: Connection, status: int, headers: list[Header]) -> None:
        """Send the answer on as it comes; stop short if it breaks off, which the server passes on."""
        start = {
            "type": "http.response.start",
            "status": status,
            "headers": response_headers(status, headers),
        }
        await self._send(start)
        try:
            while chunk := await connection.read():
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UpstreamLost:
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_client(self, connection: Connection, *, chunked: bool) -> None:
        """Pass the request's body on, then wait for the client to leave.

        A sandbox that answers before it has read the whole body is no failure: the rest is dropped.
        """
        more = True
        while more:
            try:
                message = await self._receive_part(connection)
            except TimeoutError:
                self._body_stalled = True
                connection.abort()
                return
            if message["type"] == "http.disconnect":
                self._leave(connection)
                return
            more = message.get("more_body", False)
            try:
                await _write(connection, message.get("body", b""), chunked=chunked, last=not more)
            except UpstreamLost:
                break
        else:
            self._body_sent = True
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave(connection)

    async def _receive_part(self, connection: Connection) -> Message:
        """What comes next from the client, who may take any time once the sandbox answers.

        Raises TimeoutError if it lets the sandbox wait for too long before that.
        """
        while not connection.answering:
            try:
                async with asyncio.timeout(self._max_idle):
                    return await self._receive()
            except TimeoutError:
                if not connection.answering:
                    raise
        return await self._receive()

    def _leave(self, connection: Connection) -> None:
        self._client_gone = True
        connection.abort()


async def _write(connection: Connection, body: bytes, *, chunked: bool, last: bool) -> None:
    if not chunked:
        if body:
            await connection.write(body)
        return
    parts = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
    if last:
        parts.append(b"0\r\n\r\n")
    if parts:
        await connection.write(b"".join(parts))


def _is_chunked(scope: Scope) -> bool:
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


def _has_length(headers: list[Header]) -> bool:
    return any(name == b"content-length" and value != b"0" for name, value in headers)


def _head(scope: Scope, path: bytes, headers: list[Header], *, chunked: bool) -> bytes:
    """The request's head. Its parts come from a strict parser, so they hold no line ends."""
    query = scope["query_string"]
    target = path + b"?" + query if query else path
    lines = [b"%s %s HTTP/1.1\r\n" % (scope["method"].encode(), target)]
    lines += [b"%s: %s\r\n" % header for header in headers]
    if chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
