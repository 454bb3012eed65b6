"""One WebSocket through the proxy: two connections, with messages carried between them.

Sub-protocols, close codes and reasons cross. Pings are answered by each side's own library; compression is
not offered to the sandbox.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from aenv.errors import InvalidRequest
from aenv.proxy.headers import HOP_BY_HOP, end_to_end, masked_host, request_headers
from aenv.proxy.http import AnswerUnreadable, Request
from aenv.proxy.pool import Pool
from aenv.proxy.sockets import CLIENT_CONTEXT, NotTls, open_socket, server_name
from aenv.sandboxes.models import Endpoint

MAX_MESSAGE = 64 << 20
"""Bytes. A message is held as a whole on its way."""

HANDSHAKE_TIMEOUT = 30.0
"""Seconds for the sandbox to answer the upgrade; a cold process in a slow guest needs a few."""

_NO_STATUS = 1005
_ABNORMAL = 1006
_OURS = frozenset(
    {
        b"host",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"sec-websocket-accept",
        b"content-length",
    }
)
"""Headers that belong to one connection, so the library writes them."""


class _Connect(connect):
    """Takes redirects as answers: they are for the client to follow."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Called by the library for a failed handshake."""
        return exc


class _Link:
    """Lets the pool break a bridge off."""

    def __init__(self, upstream: ClientConnection) -> None:
        self._upstream = upstream

    def abort(self) -> None:
        """Break off at once."""
        self._upstream.transport.abort()


async def bridge(request: Request, pool: Pool, endpoint: Endpoint) -> None:
    """Carry a WebSocket until one side ends it.

    Raises `AnswerUnreadable`, `NotTls` or `OSError` if the sandbox doesn't answer; nothing was sent to the
    client then.
    """
    await request.receive()  # websocket.connect
    try:
        upstream = await _open(request, endpoint)
    except InvalidStatus as refusal:
        await _refused(refusal)(request.scope, request.receive, request.send)
        return
    except InvalidHandshake as error:
        raise AnswerUnreadable(str(error)) from error
    link = _Link(upstream)
    pool.add(endpoint, link)
    try:
        await _accept(request, upstream)
        await _carry(request.receive, request.send, upstream)
    finally:
        pool.remove(endpoint, link)
        upstream.transport.abort()
        await upstream.wait_closed()


async def _accept(request: Request, upstream: ClientConnection) -> None:
    """Tell the client that the sandbox agreed. The headers are dropped then: idle sockets are many."""
    accept: dict[str, Any] = {"type": "websocket.accept", "subprotocol": upstream.subprotocol}
    response = upstream.response
    if response is not None:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.raw_items()]
        accept["headers"] = end_to_end(raw, _OURS | HOP_BY_HOP | {b"date"})
        response.headers.clear()
    upstream.request = None
    await request.send(accept)


async def _open(request: Request, endpoint: Endpoint) -> ClientConnection:
    """Connect and shake hands, with the client's own path, headers and offered sub-protocols."""
    scope, path, port = request.scope, request.route.path, request.route.port
    mask = masked_host(endpoint, port)
    headers = request_headers(scope, request.api_key, mask)
    host = next((value for name, value in headers if name == b"host"), endpoint.host.encode())
    secure = port in endpoint.https_ports
    tls: dict[str, Any] = {"ssl": CLIENT_CONTEXT, "server_hostname": server_name(mask)} if secure else {}
    query = scope["query_string"]
    target = (path + b"?" + query if query else path).replace(b"#", b"%23")
    opened = await open_socket(endpoint, port)
    try:
        opening = _Connect(
            f"{'wss' if secure else 'ws'}://{host.decode('latin-1')}{target.decode('latin-1')}",
            sock=opened,
            subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
            additional_headers=[
                (name.decode(), value.decode("latin-1")) for name, value in headers if name not in _OURS
            ],
            user_agent_header=None,
            compression=None,
            proxy=None,
            open_timeout=HANDSHAKE_TIMEOUT,
            ping_interval=None,
            max_size=MAX_MESSAGE,
            max_queue=1,
            **tls,
        )
    except (InvalidURI, ValueError) as error:
        opened.close()
        raise InvalidRequest(f"not a proper WebSocket handshake: {error}") from error
    try:
        return await opening
    except ssl.SSLError as error:
        raise NotTls(f"no TLS ({error})") from error


async def _carry(receive: Receive, send: Send, upstream: ClientConnection) -> None:
    """Carry messages both ways until one side closes, and tell the other side how."""
    ways = [
        asyncio.create_task(_to_sandbox(receive, upstream)),
        asyncio.create_task(_to_client(send, upstream)),
    ]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
    for way in done:
        way.result()


async def _to_sandbox(receive: Receive, upstream: ClientConnection) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            # Only a close frame brings a reason; a connection that was lost is passed on as lost.
            if "reason" in message:
                code = message["code"]
                await upstream.close(1000 if code == _NO_STATUS else code, message["reason"] or "")
            return
        text = message.get("text")
        try:
            await upstream.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            await asyncio.get_running_loop().create_future()  # the other way says how it was closed


async def _to_client(send: Send, upstream: ClientConnection) -> None:
    try:
        while True:
            data = await upstream.recv()
            kind = "text" if isinstance(data, str) else "bytes"
            await send({"type": "websocket.send", kind: data})
    except ConnectionClosed as closed:
        code = _ABNORMAL if closed.rcvd is None else closed.rcvd.code
        if code == _ABNORMAL:
            return  # without a close frame here, the client's connection breaks off too
        reason = "" if closed.rcvd is None else closed.rcvd.reason
        await send(
            {"type": "websocket.close", "code": 1000 if code == _NO_STATUS else code, "reason": reason}
        )


def _refused(refusal: InvalidStatus) -> Response:
    """The sandbox's own answer to a handshake that it didn't want. Raises `AnswerUnreadable`."""
    answer = refusal.response
    if answer.status_code < 200:
        raise AnswerUnreadable(f"status {answer.status_code}")
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
    headers = end_to_end(given, _OURS | HOP_BY_HOP | {b"date"})
    kind = [header for header in headers if header[0] == b"content-type"][:1]  # our server trips over two
    response = Response(bytes(answer.body or b""), answer.status_code)
    response.raw_headers.extend(kind + [header for header in headers if header[0] != b"content-type"])
    return response
