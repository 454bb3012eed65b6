"""Client of the server's control plane: what the CLI needs of the E2B API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from aenv import __version__
from aenv.cli.config import Connection
from aenv.cli.errors import ApiError, UnreachableError

TIMEOUT = 180.0
"""Longest wait for an answer, seconds: a create may have to wait for a first boot."""

Wire = dict[str, Any]


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as create, connect and fork answer it. `wire` is the answer as it came."""

    sandbox_id: str
    template_id: str
    access_token: str | None
    wire: Wire = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Wire) -> Self:
        """Read the API's JSON."""
        return cls(wire["sandboxID"], wire["templateID"], wire.get("envdAccessToken"), wire)


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as list and info answer it. Sizes in MiB, times in RFC 3339."""

    sandbox_id: str
    template_id: str
    alias: str | None
    state: str
    cpu_count: int
    memory_mib: int
    disk_mib: int
    started_at: str
    end_at: str
    metadata: Mapping[str, str]
    access_token: str | None
    wire: Wire = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Wire) -> Self:
        """Read the API's JSON."""
        return cls(
            sandbox_id=wire["sandboxID"],
            template_id=wire["templateID"],
            alias=wire.get("alias"),
            state=wire["state"],
            cpu_count=wire["cpuCount"],
            memory_mib=wire["memoryMB"],
            disk_mib=wire["diskSizeMB"],
            started_at=wire["startedAt"],
            end_at=wire["endAt"],
            metadata=wire.get("metadata") or {},
            access_token=wire.get("envdAccessToken"),
            wire=wire,
        )


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot and its names."""

    snapshot_id: str
    names: Sequence[str]
    wire: Wire = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Wire) -> Self:
        """Read the API's JSON."""
        return cls(wire["snapshotID"], tuple(wire.get("names") or ()), wire)


@dataclass(frozen=True)
class ForkResult:
    """One child of a fork, or why there is none."""

    sandbox: Sandbox | None
    error: str | None


class ApiClient:
    """An async context manager; every method raises ApiError or UnreachableError."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": f"aenv-cli/{__version__}"}
        if self.connection.api_key:
            headers["X-API-KEY"] = self.connection.api_key
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT, sock_connect=10.0)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def create(
        self,
        template: str,
        *,
        timeout: int,
        env: Mapping[str, str],
        metadata: Mapping[str, str],
        auto_pause: bool | None = None,
    ) -> Sandbox:
        """Start a sandbox; `timeout` is in seconds, `auto_pause` None leaves it to the server."""
        body: Wire = {
            "templateID": template,
            "timeout": timeout,
            "envVars": dict(env),
            "metadata": dict(metadata),
        }
        if auto_pause is not None:
            body["autoPause"] = auto_pause
        return Sandbox.parse(await self.request_object("POST", "/v2/sandboxes", body))

    async def connect(self, sandbox_id: str, timeout: int | None = None, *, reboot: bool = False) -> Sandbox:
        """Resume a paused sandbox, or reboot it from its disk; a running one may get a later deadline."""
        body: dict[str, object] = {} if timeout is None else {"timeout": timeout}
        if reboot:
            body["memory"] = False
        return Sandbox.parse(
            await self.request_object("POST", f"/v2/sandboxes/{segment(sandbox_id)}/connect", body)
        )

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """All about one sandbox."""
        return SandboxInfo.parse(await self.request_object("GET", f"/sandboxes/{segment(sandbox_id)}"))

    async def sandboxes(self, *, state: str | None = None, metadata: Mapping[str, str]) -> list[SandboxInfo]:
        """All sandboxes, or those with the state and all the metadata given."""
        query = {"state": state} if state else {}
        if metadata:
            # Quoted twice, as the SDKs send it.
            query["metadata"] = urlencode({quote(key): quote(value) for key, value in metadata.items()})
        return [SandboxInfo.parse(item) for item in await self.pages("/v2/sandboxes", query)]

    async def pause(self, sandbox_id: str, *, memory: bool = True) -> None:
        """Pause, keeping the memory or the disk alone; a 409 says that it is paused already."""
        body = {} if memory else {"memory": False}
        await self.request("POST", f"/sandboxes/{segment(sandbox_id)}/pause", body)

    async def kill(self, sandbox_id: str) -> None:
        """End a sandbox for good."""
        await self.request("DELETE", f"/sandboxes/{segment(sandbox_id)}")

    async def set_timeout(self, sandbox_id: str, timeout: int) -> None:
        """Set the deadline to `timeout` seconds from now."""
        await self.request("POST", f"/sandboxes/{segment(sandbox_id)}/timeout", {"timeout": timeout})

    async def refresh(self, sandbox_id: str, duration: int) -> None:
        """Let the deadline be at least `duration` seconds from now."""
        await self.request("POST", f"/sandboxes/{segment(sandbox_id)}/refreshes", {"duration": duration})

    async def logs(self, sandbox_id: str, cursor: int, level: str) -> list[Wire]:
        """Log entries from `cursor`, milliseconds since the epoch, on; oldest first, at most 1,000."""
        query = {"cursor": str(cursor), "level": level, "direction": "forward"}
        answer, _ = await self.request("GET", f"/v2/sandboxes/{segment(sandbox_id)}/logs", query=query)
        return list(answer["logs"])

    async def metrics(self, sandbox_id: str) -> list[Wire]:
        """Samples of the last hour, oldest first."""
        answer, _ = await self.request("GET", f"/sandboxes/{segment(sandbox_id)}/metrics")
        return list(answer)

    async def fork(self, sandbox_id: str, count: int, timeout: int | None) -> list[ForkResult]:
        """Make `count` independent copies of a running sandbox."""
        body: Wire = {"count": count}
        if timeout is not None:
            body["timeout"] = timeout
        answer, _ = await self.request("POST", f"/sandboxes/{segment(sandbox_id)}/fork", body)
        return [
            ForkResult(Sandbox.parse(item["sandbox"]), None)
            if item.get("sandbox")
            else ForkResult(None, str(item.get("error", {}).get("message", "unknown error")))
            for item in answer
        ]

    async def create_snapshot(self, sandbox_id: str, name: str | None) -> SnapshotInfo:
        """Keep a sandbox's present state as something to start from."""
        body = {} if name is None else {"name": name}
        return SnapshotInfo.parse(
            await self.request_object("POST", f"/sandboxes/{segment(sandbox_id)}/snapshots", body)
        )

    async def roll_back(self, sandbox_id: str, snapshot: str) -> None:
        """Put a running sandbox back to one of its snapshots."""
        await self.request("POST", f"/sandboxes/{segment(sandbox_id)}/rollback", {"snapshotID": snapshot})

    async def snapshots(self, sandbox_id: str | None) -> list[SnapshotInfo]:
        """All snapshots, or those of one sandbox."""
        query = {"sandboxID": sandbox_id} if sandbox_id else {}
        return [SnapshotInfo.parse(item) for item in await self.pages("/snapshots", query)]

    async def delete_template(self, name: str) -> None:
        """Remove a template or a snapshot."""
        await self.request("DELETE", f"/templates/{segment(name)}")

    async def put(self, url: str, content: AsyncIterable[bytes], size: int) -> None:
        """Send `size` bytes to a link that the server gave out; it is signed and needs no key."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=TIMEOUT)
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.put(URL(url, encoded=True), data=content, headers=headers) as response,
            ):
                text = await response.read()
                if response.status >= 400:
                    raise ApiError(response.status, _message(response.status, text), path="/uploads")
        except TimeoutError as error:
            raise UnreachableError(url.partition("?")[0], "no answer in time") from error
        except aiohttp.ClientError as error:
            raise UnreachableError(url.partition("?")[0], f"an upload broke off ({error})") from error

    async def pages(self, path: str, query: Mapping[str, str]) -> list[Wire]:
        """All items of a list that comes in pages."""
        items: list[Wire] = []
        token: str | None = None
        while True:
            asked = {**query, "nextToken": token} if token else dict(query)
            page, token = await self.request("GET", path, query=asked)
            items.extend(page)
            if not token:
                return items

    async def request_object(self, method: str, path: str, body: Wire | None = None) -> Wire:
        """The answer's JSON, which must be an object."""
        answer, _ = await self.request(method, path, body)
        if not isinstance(answer, dict):
            raise ApiError(500, f"{method} {path}: the server's answer isn't a JSON object", path=path)
        return answer

    async def request(
        self, method: str, path: str, body: Wire | None = None, query: Mapping[str, str] | None = None
    ) -> tuple[Any, str | None]:
        """The answer's JSON (None if it has no body) and the token of the next page."""
        if self._session is None:
            raise RuntimeError("the client wasn't entered")
        url = self.connection.api_url
        # The path is encoded already: an encoded slash in a template's name must stay one.
        target = URL(url + path + (f"?{urlencode(query)}" if query else ""), encoded=True)
        try:
            async with self._session.request(method, target, json=body) as response:
                text = await response.read()
                if response.status >= 400:
                    raise ApiError(response.status, _message(response.status, text), path=path)
                return (json.loads(text) if text else None), response.headers.get("x-next-token")
        except aiohttp.ClientConnectorError as error:
            raise UnreachableError(url, error.os_error.strerror or str(error.os_error)) from error
        except TimeoutError as error:
            raise UnreachableError(url, "no answer in time") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise UnreachableError(url, f"it doesn't answer as an AgentENV server ({error})") from error


def segment(text: str) -> str:
    """`text` as one segment of a path."""
    return quote(text, safe="")


def _message(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode("utf-8", "replace").strip()
        return f"the server answered with HTTP status {status}{': ' + text if text else ''}"
