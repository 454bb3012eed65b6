"""The proxy as a bare ASGI application in front of the API: a framework in between would cost two thirds of
the requests per second.
"""

from __future__ import annotations

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aenv.api.errors import ErrorGuard, error_response
from aenv.errors import AenvError, SandboxNotFound
from aenv.proxy import failures
from aenv.proxy.http import AnswerUnreadable, BodyStalled, ClientGone, Exchange, Request
from aenv.proxy.pool import Pool
from aenv.proxy.routing import BadRoute, find_route
from aenv.proxy.sockets import NotTls
from aenv.proxy.tokens import is_internal, may_pass
from aenv.proxy.websocket import bridge
from aenv.sandboxes.base import Sandboxes


class ProxyApp:
    """Sends traffic of sandboxes to them, and everything else to the API.

    `api_key` is the server's own key, which sandboxes must not see. `max_upload_idle`: seconds that the body
    of a request may stand still, if there is a bound.
    """

    def __init__(
        self,
        app: ASGIApp,
        sandboxes: Sandboxes,
        *,
        domain: str | None,
        api_key: str,
        max_upload_idle: float | None,
    ) -> None:
        self._app = app
        self._sandboxes = sandboxes
        self._domain = domain
        self._api_key = api_key.encode()
        self._max_upload_idle = max_upload_idle
        self._pool = Pool()
        self._guarded = ErrorGuard(self._serve, "proxy")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        try:
            raw_path = scope.get("raw_path") or scope["path"].encode()
            route = find_route(scope["headers"], raw_path, self._domain)
        except BadRoute as error:
            await error_response(error)(scope, receive, send)
            return
        if route is None:
            await self._app(scope, receive, send)
        else:
            scope["aenv.route"] = route
            await self._guarded(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._pool.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request to a sandbox. Whatever fails before an answer began becomes an answer."""
        request = Request(scope, receive, send, scope["aenv.route"], self._api_key)
        try:
            refusal = await self._answer(request)
        except ClientGone:
            return
        except BodyStalled:
            refusal = failures.body_stalled(request.route.sandbox_id)
        except SandboxNotFound:
            refusal = failures.sandbox_not_found(request.route.sandbox_id)
        except AenvError as error:
            refusal = error_response(error)
        except Exception:
            structlog.contextvars.bind_contextvars(sandbox=request.route.sandbox_id)  # for who logs it
            raise
        if refusal is not None:
            await refusal(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Send the request on. What is returned is the answer if the sandbox can't give one."""
        route = request.route
        if is_internal(route.port, route.path):
            return failures.route_hidden(route.sandbox_id)
        headers = request.scope["headers"]
        endpoint = self._sandboxes.live_endpoint(route.sandbox_id)
        if endpoint is None:
            sandbox = await self._sandboxes.get(route.sandbox_id)
            if not may_pass(sandbox.traffic_token, route.port, headers):
                return failures.token_needed(route.sandbox_id)  # before it could wake a paused sandbox
            endpoint = await self._sandboxes.endpoint(route.sandbox_id)
        if not may_pass(endpoint.traffic_token, route.port, headers):
            return failures.token_needed(route.sandbox_id)
        try:
            if request.scope["type"] == "websocket":
                await bridge(request, self._pool, endpoint)
            else:
                await Exchange(request, self._pool, endpoint, self._max_upload_idle).run()
        except (OSError, AnswerUnreadable, NotTls) as error:
            if endpoint.gone.is_set():
                return failures.sandbox_not_found(route.sandbox_id)
            return failures.of(error, route.sandbox_id, route.port)
        return None
