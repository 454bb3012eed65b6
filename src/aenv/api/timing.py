"""Tells clients how long the stages of their request took."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aenv import timings


class ServerTiming:
    """Adds the header `Server-Timing` where a service noted stages."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect while the application runs, up to the begin of its response."""
        with timings.collect() as collected:

            async def timed(message: Message) -> None:
                header = collected.header() if message["type"] == "http.response.start" else ""
                if header:
                    headers = [*message["headers"], (b"server-timing", header.encode())]
                    message = {**message, "headers": headers}
                await send(message)

            await self.app(scope, receive, timed)
