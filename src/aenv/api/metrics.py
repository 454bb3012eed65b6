"""What the server counts about itself, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aenv import unexpected
from aenv.sandboxes.models import Census

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
"""All others count as `other`: a stranger must not be able to make ever new series."""

NO_ROUTE = "none"
"""The route of requests without a key, and of paths that don't exist."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds: from a look into the database to the cold boot of a guest under emulation."""


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(unexpected.ERRORS)
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
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._sandboxes = Gauge("aenv_sandboxes", "Sandboxes, by state.", ["state"], registry=self._registry)
        self._spares = Gauge(
            "aenv_pool_size", "Machines kept for a quick start, by pool.", ["pool"], registry=self._registry
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request to the API."""
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self, census: Census) -> bytes:
        """Everything in Prometheus' text format, with the sandboxes as `census` has them."""
        _set(self._sandboxes, census.sandboxes)
        _set(self._spares, {name: pool.size for name, pool in census.pools.items()})
        return generate_latest(self._registry)


def _set(gauge: Gauge, values: Mapping[str, int]) -> None:
    for name, value in values.items():
        gauge.labels(name).set(value)


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
