"""HTTP/1.1 towards clients: uvicorn's, with bounds on what a stranger can make the server keep.

Requests that offer another protocol than WebSocket, as clients do that would rather speak HTTP/2, are served
as if they didn't (RFC 9110 section 7.8); uvicorn alone would lose their bodies.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.events import TimerHandle

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_HEAD = 128 * 1024
"""Bytes of a request's head, of its trailers or between two parts of its body: the parser keeps them all."""

HEAD_TIMEOUT = 30.0
"""Seconds from the first byte of a request's head to its last, and for what follows an answer that came
before the whole request had."""

_OFFERS = frozenset({b"upgrade", b"http2-settings"})
"""Headers with which a client offers another protocol."""

_BODY = frozenset({b"content-length", b"transfer-encoding"})


class PatientWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, for clients that speak before they were answered, and wrongly."""

    def handle_parser_exception(self) -> None:
        """Called for what isn't WebSocket; uvicorn takes it that the handshake is over then."""
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
            return
        self.close_sent = True
        self.disconnected = True  # whoever answers the handshake learns that the client is gone
        self.handshake_complete = True  # and nothing more is to be said
        self.transport.close()


class BoundedHttp(HttpToolsProtocol):
    """Ends a connection whose headers have no end. Heads are parsed before any key can be checked."""

    _unaccounted = 0
    _in_body = False
    _late: TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Part of `asyncio.Protocol`. A connection on which nothing is asked is as idle as one between two
        requests.
        """
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        self._forget_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        self._unaccounted += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._unaccounted > MAX_HEAD and not self.transport.is_closing():
            if self._between_answers():
                self.refuse(400, f"the headers are larger than {MAX_HEAD} bytes")
            else:
                self.transport.abort()
        self._bound_time()

    def _feed(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:  # in a loop, as each of many requests may have to be read again
                left = self._parse(left)
        except httptools.HttpParserError:
            self.send_400_response("not a proper HTTP/1.1 request")

    def _parse(self, data: memoryview) -> memoryview:
        """Parse to the end, or to the end of a head that makes an offer; return what is left."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.parser.get_method() == b"CONNECT":
                self.refuse(400, "this is no proxy for CONNECT")
            else:
                self._decline_upgrade()
                return data[upgrade.args[0] :]
        return data[:0]

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; if the handshake can't be read, say so, which uvicorn doesn't."""
        self._forget_timers()
        super().handle_websocket_upgrade()
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):
            self.refuse(400, "not a proper WebSocket handshake")

    def _decline_upgrade(self) -> None:
        """Read the head of the request again, in a new parser and without its offer."""
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [each.strip() for each in value.split(b",") if each.strip().lower() not in _OFFERS]
                head.append(b"connection: %s\r\n" % b", ".join(tokens) if tokens else b"")
            elif name not in _OFFERS:
                head.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(b"".join(head) + b"\r\n")

    # time

    def _bound_time(self) -> None:
        """Start or stop the clock for a head, or for the rest of a request that has been answered."""
        waits = self._unaccounted > 0 and not self._in_body
        lingers = self._in_body and self._between_answers()
        if not (waits or lingers) or self.transport.is_closing():
            self._stop_clock()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_TIMEOUT, self._is_late)

    def _is_late(self) -> None:
        self._late = None
        if self.transport.is_closing():
            return
        if not self._between_answers():  # a pipelined head, behind an answer that takes its time
            self._late = self.loop.call_later(HEAD_TIMEOUT, self._is_late)
        elif self._in_body:
            self.transport.close()
        else:
            self.refuse(408, f"the headers took more than {HEAD_TIMEOUT:g} s")

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _forget_timers(self) -> None:
        self._stop_clock()
        self._unset_keepalive_if_required()

    # answers

    def _between_answers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn too."""
        self.refuse(400, msg)

    def refuse(self, status: int, message: str) -> None:
        """Answer in the contract's form what no application has seen, and close."""
        body = json.dumps({"code": status, "message": message}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()

    # httptools callbacks

    def _should_upgrade(self) -> bool:
        """Whether it is a WebSocket's handshake, which is a GET without a body."""
        return (
            super()._should_upgrade()
            and self.parser.get_method() == b"GET"
            and not any(name in _BODY for name, _ in self.headers)
        )

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        self._in_body = True
        if self._should_upgrade() or not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        self._in_body = False
        if not self.parser.should_upgrade():
            super().on_message_complete()
