"""HTTP/1.1 towards clients: uvicorn's, with a bound on what a stranger can make the server keep."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 128 * 1024
"""Bytes of a request's head, of its trailers or between two parts of its body: the parser keeps them all."""


class BoundedHttp(HttpToolsProtocol):
    """Ends a connection whose headers have no end. Heads are parsed before any key can be checked."""

    _unaccounted = 0

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        self._unaccounted += len(data)
        super().data_received(data)
        if self._unaccounted > MAX_HEAD and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response(f"The headers are larger than {MAX_HEAD} bytes.")
            else:
                self.transport.abort()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._unaccounted = 0
        super().on_message_complete()
