"""Host names for the tests of domains: every name below one domain is this machine, for one program only."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = "127.53.0.1"
"""Loopback address of the name server; resolvers can't be told another port than 53."""

_A = 1


class _Answer(socketserver.BaseRequestHandler):
    """Answers a query for an IPv4 address with this machine's, and every other one with nothing."""

    def handle(self) -> None:
        query, socket = self.request
        end = query.index(b"\0", 12) + 5  # header, name, type and class (RFC 1035 section 4)
        (kind,) = struct.unpack(">H", query[end - 4 : end - 2])
        answers = 1 if kind == _A else 0
        head = query[:2] + struct.pack(">HHHHH", 0x8580, 1, answers, 0, 0)
        record = struct.pack(">HHHIH", 0xC00C, _A, 1, 60, 4) + b"\x7f\0\0\1"
        socket.sendto(head + query[12:end] + record * answers, self.client_address)


@contextmanager
def local_names(folder: Path) -> Iterator[list[str]]:
    """Begin of a command line: the program after it finds every host name on this machine.

    Its own mount namespace has another `/etc/resolv.conf`, so no program needs to be changed for it.
    """
    configuration = folder / "resolv.conf"
    configuration.write_text(f"nameserver {SERVER}\noptions timeout:2\n")
    with socketserver.UDPServer((SERVER, 53), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            mount = f'mount --bind "{configuration}" /etc/resolv.conf && exec "$@"'
            yield ["unshare", "--mount", "sh", "-c", mount, "sh"]
        finally:
            server.shutdown()
            thread.join()
