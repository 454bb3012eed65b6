"""A real registry on loopback: the distribution's `docker-registry`, with a configuration of its own."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.images.builder import Document
from tests.server import STATE

USER, PASSWORD = "puller", "secret-of-the-tests"
_HTPASSWD = f"{USER}:$2b$04$QAE8XUNhpiCxmVPWco6eguVGUVhuFzWW//UJLxVkjHyNMva7r1IdS\n"
"""The password in bcrypt, of which the registry takes no other form."""

_START_SECONDS = 20


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Registry:
    """A registry that runs."""

    host: str
    """`127.0.0.1:port`."""
    folder: Path
    secret: bool = False
    """Does it want USER and PASSWORD?"""

    def name(self, repository: str, wanted: str = "latest") -> str:
        """What a user calls an image on it; `wanted` is a tag or a digest."""
        return f"{self.host}/{repository}{'@' if ':' in wanted else ':'}{wanted}"

    def push(self, repository: str, document: Document, tag: str = "latest") -> str:
        """Push an image, or an index with all its images, and return its name."""
        self._push(repository, document, tag)
        return self.name(repository, tag)

    def _push(self, repository: str, document: Document, wanted: str) -> None:
        for child in document.children:
            self._push(repository, child, child.digest)
        for digest, data in document.blobs.items():
            location = self._request("POST", f"/v2/{repository}/blobs/uploads/", 202)
            joint = "&" if "?" in location else "?"
            self._request("PUT", f"{location}{joint}digest={digest}", 201, data, "application/octet-stream")
        self._request("PUT", f"/v2/{repository}/manifests/{wanted}", 201, document.data, document.media_type)

    def _request(self, method: str, url: str, status: int, body: bytes = b"", media_type: str = "") -> str:
        """Send a request, check the status of the answer and return where it leads."""
        headers = {"Content-Type": media_type} if media_type else {}
        if self.secret:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        assert answer.status == status, f"{method} {path}: {answer.status} {said.decode(errors='replace')}"
        return answer.headers.get("Location", "")

    def damage(self, digest: str, data: bytes) -> None:
        """Put something else in the place of a blob."""
        name = digest.partition(":")[2]
        stored = self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"
        assert stored.exists()
        stored.write_bytes(data)


@contextmanager
def running_registry(folder: Path, *, secret: bool = False) -> Iterator[Registry]:
    """Start a registry that keeps its state in `folder`, for everybody or for USER only, and end it."""
    program = shutil.which("docker-registry") or str(STATE / "docker-registry/usr/bin/docker-registry")
    host = f"127.0.0.1:{free_port()}"
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
    }
    if secret:
        (folder / "htpasswd").write_text(_HTPASSWD)
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    configuration = folder / "config.yml"
    configuration.write_text(json.dumps(settings))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", configuration], stdout=log, stderr=log)
    try:
        _await_port(process, host, folder / "log")
        yield Registry(host, folder / "data", secret)
    finally:
        process.kill()
        process.wait()


def _await_port(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    name, _, port = host.partition(":")
    while True:
        try:
            socket.create_connection((name, int(port)), timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the registry doesn't start"
            time.sleep(0.02)
        else:
            return
