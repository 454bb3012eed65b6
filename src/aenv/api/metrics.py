"""What the server counts about itself, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aenv import timings, unexpected
from aenv.api.census import CensusCollector
from aenv.sandboxes.models import Census
from aenv.snapshots import captures

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
"""All others count as `other`: a stranger must not be able to make ever new series."""

NO_ROUTE = "none"
"""The route of requests without a key, and of paths that don't exist."""


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for each in (unexpected.ERRORS, timings.OPERATIONS, timings.STAGES, captures.CAPTURED):
            self._registry.register(each)
        self._requests = Counter(
            "aenv_http_requests",
            "Requests to the API; traffic of sandboxes is not among them.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "aenv_http_request_duration_seconds",
            "Time from a request's head to the end of its answer.",
            ["method", "route"],
            buckets=timings.BUCKETS,
            registry=self._registry,
        )
        self._census = CensusCollector()
        self._registry.register(self._census)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request to the API."""
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self, census: Census) -> bytes:
        """Everything in Prometheus' text format, with the sandboxes as `census` has them."""
        self._census.census = census
        return generate_latest(self._registry)


class Metered:
    """Counts the requests that pass. The layers below must leave the scope in place, as it gets the route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; if it fails, what the client gets is a 500 or a broken connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500
        begun = time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", NO_ROUTE)
            self.metrics.answered(scope["method"], route, status, time.perf_counter() - begun)
