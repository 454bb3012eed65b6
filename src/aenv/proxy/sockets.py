"""Connections to a port of a sandbox, before anything is said over them; TLS where the port speaks it."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aenv.sandboxes.models import Endpoint

CONNECT_TIMEOUT = 5.0
"""Seconds. A guest that is frozen for a capture drops the first packet; the kernel repeats it after 1 s."""

TLS_TIMEOUT = 20.0
"""Seconds for the handshake, which a slow guest computes for a while."""


class NotTls(Exception):
    """What listens on the port doesn't speak TLS, or breaks off the handshake."""


def _client_context() -> ssl.SSLContext:
    """TLS that hides nothing from the host: the wire ends in this machine, so who answers is known."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


CLIENT_CONTEXT = _client_context()


def server_name(mask: bytes | None) -> str:
    """The name to ask for in the handshake: the masked host's, or none (empty)."""
    host = (mask or b"").decode()
    return "" if host.startswith("[") else host.partition(":")[0]


async def open_socket(endpoint: Endpoint, port: int) -> socket.socket:
    """A connected socket; the caller owns it.

    Raises `ConnectionRefusedError`, `TimeoutError` or another `OSError`.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await asyncio.get_running_loop().sock_connect(opened, (endpoint.host, port))
    except BaseException:
        opened.close()
        raise
    return opened
