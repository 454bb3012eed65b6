"""A program of a user that notices everything a pause could break; runs in a sandbox: `survivor.py PORT`.

It has a TCP connection to itself over which it sends numbers, a file that it keeps open and appends to, and
a count in its memory. `GET /step?n=N` appends block N and tells what it knows; `GET /verify` reads the file
from its start. Whatever is wrong is in `problems`.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

BLOCK = 128 << 10


def block(number: int) -> bytes:
    """The content of block `number`, which doesn't compress or repeat."""
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(BLOCK)


class Survivor:
    """The state that must survive."""

    def __init__(self, path: str) -> None:
        self.file: IO[bytes] = Path(path).open("w+b", buffering=0)  # noqa: SIM115 (it stays open)
        self.blocks = 0
        self.exchanged = 0
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.connect()

    def connect(self) -> None:
        """One connection for all of its life; both ends check what they get."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.ours = socket.create_connection(listener.getsockname())
        self.theirs, _ = listener.accept()
        threading.Thread(target=self.talk, daemon=True).start()

    def talk(self) -> None:
        """Numbers go back and forth."""
        try:
            while True:
                message = self.exchanged.to_bytes(8, "little")
                self.ours.sendall(message)
                if self.theirs.recv(8) != message:
                    raise OSError("another number came than was sent")
                self.exchanged += 1
                time.sleep(0.02)
        except OSError as error:
            self.problems.append(f"the connection broke: {error}")

    def step(self, number: int) -> None:
        """Append the next block."""
        if number != self.blocks:
            self.problems.append(f"block {number} was asked for after {self.blocks} blocks")
        self.file.write(block(number))
        os.fsync(self.file.fileno())
        self.blocks += 1

    def verify(self) -> None:
        """Read all of the file anew."""
        with Path(self.file.name).open("rb") as file:
            for number in range(self.blocks):
                if file.read(BLOCK) != block(number):
                    self.problems.append(f"block {number} is another one")
            if file.read(1):
                self.problems.append("the file is longer than what was written")

    def report(self) -> bytes:
        """What it knows."""
        known = {"pid": os.getpid(), "blocks": self.blocks, "exchanged": self.exchanged}
        return json.dumps({**known, "problems": self.problems}).encode()


def main() -> None:
    """Serve until the sandbox ends."""
    survivor = Survivor(sys.argv[2])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            with survivor.lock:
                if asked.path == "/step":
                    survivor.step(int(parse_qs(asked.query)["n"][0]))
                elif asked.path == "/verify":
                    survivor.verify()
                answer = survivor.report()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            """Nothing."""

    ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
