"""The server process: a node, the proxy and the API on one port, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import uvicorn
import uvloop

from aenv import unexpected
from aenv.api import logs
from aenv.api.app import Services, create_app
from aenv.api.auth import ENVIRONMENT, ApiKeys
from aenv.api.protocol import BoundedHttp, PatientWebSocket
from aenv.errors import HostNotReady
from aenv.images.progress import Progress, RichProgress
from aenv.limits import raise_file_limit
from aenv.proxy.app import ProxyApp
from aenv.proxy.websocket import MAX_MESSAGE
from aenv.settings import Settings
from aenv.tasks import cancel
from aenv.tls.certificates import open_certificates

GRACE = 5
"""Seconds that requests under way get to finish when the server stops."""

KEEP_ALIVE = 310
"""Seconds that an idle client connection stays open: above the 300 s after which E2B's SDK drops one."""

PING_INTERVAL = 30.0
"""Seconds between WebSocket pings to clients, to notice those that vanished."""

TLS_HANDSHAKE = 20
"""Seconds that a client gets for the TLS handshake."""

TCP_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}
"""TCP asks a silent client after a minute whether it is there, and gives it up a minute later: a client that
vanished must not hold a connection, and the one to its sandbox behind it."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""


class Node(Services, Protocol):
    """What the server needs: `aenv.node.Node`, or a test's own. Services are there once it has started."""

    async def start(self, progress: Progress | None = None) -> None:
        """Make it ready. Raises `HostNotReady`; nothing is left running then."""

    async def stop(self) -> None:
        """End it cleanly."""


class _HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, and with a second socket that speaks TLS if there is one."""

    def __init__(self, app: ProxyApp, secure: tuple[socket.socket, ssl.SSLContext] | None = None) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=BoundedHttp,
            ws=PatientWebSocket,
            ws_max_size=MAX_MESSAGE,
            ws_per_message_deflate=False,
            ws_ping_interval=PING_INTERVAL,
            ws_ping_timeout=PING_INTERVAL,
            lifespan="on",
            log_config=None,
            # Our own layers log failures; uvicorn would add a line for every stream that a VM's end cuts.
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)
        self.listening = asyncio.Event()
        self._secure = secure

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to our caller."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        if self._secure is not None:
            listener, context = self._secure
            server = await asyncio.get_running_loop().create_server(
                self._protocol,
                sock=listener,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE,
                ssl_shutdown_timeout=GRACE,
                backlog=BACKLOG,
            )
            self.servers.append(server)
        self.listening.set()

    def _protocol(self) -> asyncio.Protocol:
        return BoundedHttp(self.config, self.server_state, self.lifespan.state)


async def serve(
    settings: Settings,
    node: Node,
    stop: asyncio.Event,
    *,
    ready: Callable[[str], None],
    progress: Progress | None = None,
) -> None:
    """Run a server until `stop` is set.

    `ready` gets the base URL once requests are taken. Raises `HostNotReady` if the address, the key or
    something the node needs can't be had.
    """
    auth = await asyncio.to_thread(ApiKeys.load, settings)
    with _bound(settings.host, settings.port, "AENV_PORT") as listener, contextlib.ExitStack() as more:
        certificates = following = None
        if settings.domain is not None:
            certificates = await open_certificates(settings, settings.domain)
            secure = more.enter_context(_bound(settings.host, settings.listen_tls_port, "AENV_TLS_PORT"))
        if not await _done_before(stop, node.start(progress)):
            return
        try:
            api = create_app(node, auth, settings)
            app = ProxyApp(
                api,
                node.sandboxes,
                domain=settings.domain,
                api_key=auth.key,
                max_upload_idle=settings.max_upload_idle or None,
            )
            if certificates is None:
                server = _HttpServer(app)
            else:
                server = _HttpServer(app, (secure, certificates.context))
                following = asyncio.create_task(certificates.follow())
            await _listen(server, listener, stop, ready)
        finally:
            try:
                if following is not None:
                    await cancel(following)
            finally:
                await node.stop()


async def _done_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, True, or cancel it when `stop` is set, False."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = working.done()
        working.cancel()
        stopping.cancel()
        await asyncio.wait({working, stopping})
    if finished:
        working.result()
    return finished


async def _listen(
    server: _HttpServer, listener: socket.socket, stop: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Serve until `stop` is set, then end what is under way within `GRACE`."""
    serving = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(stop.wait())
    listening = asyncio.create_task(server.listening.wait())
    try:
        await asyncio.wait({serving, stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            ready(_url(listener))
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopping.cancel()
        listening.cancel()
        await asyncio.wait({serving, stopping, listening})
    await serving


@contextlib.contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """A socket bound to the address, not listening yet; known to be ours before the slow start begins."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise HostNotReady(f"can't listen on {host!r}: {error.strerror}; set AENV_HOST") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted connections inherit it
        for option, value in TCP_KEEP_ALIVE.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.setblocking(False)
        try:
            listener.bind(address)
        except OSError as error:
            reason = f"can't listen on {host} port {port}: {error.strerror}"
            raise HostNotReady(f"{reason}; set AENV_HOST or {setting}") from error
        yield listener


def _url(listener: socket.socket) -> str:
    """The base URL at which a client on this host reaches the server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- turned into loopback
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def usage(url: str, settings: Settings) -> str:
    """What a user needs to know to use a server that has just started."""
    key = f"the key in ${ENVIRONMENT}"
    if not ApiKeys.from_environment():
        key = f"the key in {settings.api_key_file}"
    text = f"AgentENV serves {url}; use E2B_API_URL={url} E2B_SANDBOX_URL={url} and, as E2B_API_KEY, {key}"
    if settings.public_domain is not None:
        text += f"; or, over TLS, E2B_DOMAIN={settings.public_domain}"
        if settings.tls_cert is None:
            text += ", with the certificates that `aenv certs` shows"
    return text


def run(settings: Settings) -> None:
    """Run the server until SIGTERM or SIGINT.

    If the host lacks something, says on stderr what, and exits with code 1.
    """
    logs.configure(settings.log_format)
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_run(settings))
        except HostNotReady as error:
            print(f"aenv: {error.message}", file=sys.stderr)  # noqa: T201 -- for the user
            raise SystemExit(1) from error


async def _run(settings: Settings) -> None:
    from aenv.node import Node as RealNode  # noqa: PLC0415 -- drags in every runtime; tests bring their own

    def ready(url: str) -> None:
        print(usage(url, settings), flush=True)  # noqa: T201 -- for the user

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(unexpected.in_loop)
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    await serve(settings, RealNode(settings), stop, ready=ready, progress=RichProgress())
