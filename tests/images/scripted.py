"""A registry that misbehaves as a test says, and the token server and the store of blobs beside it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.images.builder import Document

Trouble = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers a request, or lets it pass."""

REPOSITORY = "org/app"


@dataclass
class Seen:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    form: Mapping[str, str]


@dataclass
class ScriptedServer:
    """A server on loopback; `troubles` are asked in turn for each request before it answers as it should."""

    documents: dict[str, Document] = field(default_factory=dict)
    """By tag."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """By digest."""
    troubles: list[Trouble] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    @property
    def host(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://{self.host}"

    def add(self, document: Document, tag: str = "latest") -> str:
        """Serve an image, and return its name."""
        self.documents[tag] = document
        self.blobs |= document.all_blobs()
        return f"{self.host}/{REPOSITORY}:{tag}"

    def asked(self, part: str) -> list[Seen]:
        """The requests for something whose path has `part` in it."""
        return [each for each in self.seen if part in each.path and each.method != "HEAD"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.seen.append(Seen(request.method, request.path, request.query, request.headers, form))
        for trouble in self.troubles:
            answer = await trouble(request)
            if answer is not None:
                return answer
        if request.path == "/v2/":
            return web.json_response({})
        kind, _, wanted = request.path.removeprefix(f"/v2/{REPOSITORY}/").partition("/")
        if kind == "manifests":
            return self._manifest(wanted)
        data = self.blobs.get(wanted)
        if kind != "blobs" or data is None:
            return problem(404, "NOT_FOUND", "no such thing")
        return part_of(data, request)

    def _manifest(self, wanted: str) -> web.Response:
        for tag, document in self.documents.items():
            if wanted in {tag, document.digest}:
                return web.Response(body=document.data, content_type=document.media_type)
        return problem(404, "MANIFEST_UNKNOWN", "manifest unknown")


def problem(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A registry's error."""
    body = {"errors": [{"code": code, "message": message}]}
    return web.json_response(body, status=status, headers=headers)


def part_of(data: bytes, request: web.Request) -> web.Response:
    """The bytes that a request asks for."""
    start = request.http_range.start or 0
    if not start:
        return web.Response(body=data)
    headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
    return web.Response(status=206, body=data[start:], headers=headers)


def for_path(part: str, trouble: Trouble, times: int = 1_000_000) -> Trouble:
    """A trouble for the first requests, at most `times`, whose path has `part` in it."""
    left = times

    async def act(request: web.Request) -> web.StreamResponse | None:
        nonlocal left
        if part not in request.path or left == 0:
            return None
        left -= 1
        return await trouble(request)

    return act


def status(code: int, headers: Mapping[str, str] | None = None, message: str = "it is so") -> Trouble:
    """Answers with a status."""

    async def act(_request: web.Request) -> web.StreamResponse:
        return problem(code, "TROUBLE", message, headers)

    return act


def cut_after(data: bytes, size: int, *, stall: asyncio.Event | None = None) -> Trouble:
    """Sends `size` bytes of what is asked for, then breaks off, or stalls until the event."""

    async def act(request: web.Request) -> web.StreamResponse:
        start = request.http_range.start or 0
        response = web.StreamResponse(status=206 if start else 200)
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response.content_length = len(data) - start
        await response.prepare(request)
        await response.write(data[start : start + size])
        if stall is not None:
            await stall.wait()
        assert request.transport is not None
        request.transport.close()
        return response

    return act


def needs_token(realm: str, accepted: Callable[[str], bool]) -> Trouble:
    """Lets pass what has an accepted token, and sends the rest to `realm`."""
    challenge = f'Bearer realm="{realm}",service="the, service",scope="repository:{REPOSITORY}:pull,push"'

    async def act(request: web.Request) -> web.StreamResponse | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and accepted(token):
            return None
        return problem(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": challenge})

    return act


@asynccontextmanager
async def scripted_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    """A server that runs until the block ends."""
    server = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()
