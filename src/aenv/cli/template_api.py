"""What the CLI needs of the E2B API's template routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from aenv.cli.api import ApiClient, Wire, segment
from aenv.cli.archives import Upload


@dataclass(frozen=True)
class TemplateInfo:
    """A template. Sizes in MiB."""

    template_id: str
    names: Sequence[str]
    status: str
    cpu_count: int
    memory_mib: int
    disk_mib: int
    updated_at: str
    wire: Wire = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Wire) -> Self:
        """Read the API's JSON."""
        return cls(
            template_id=wire["templateID"],
            names=tuple(wire.get("names") or wire.get("aliases") or ()),
            status=wire.get("buildStatus", ""),
            cpu_count=wire["cpuCount"],
            memory_mib=wire["memoryMB"],
            disk_mib=wire["diskSizeMB"],
            updated_at=wire["updatedAt"],
            wire=wire,
        )


@dataclass(frozen=True)
class Wanted:
    """What is asked for in a build, beside what is in it. Sizes in MiB; None is the parent's."""

    name: str
    tags: Sequence[str] = ()
    cpu_count: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None

    def body(self) -> Wire:
        """The body of `POST /v3/templates`."""
        asked: Wire = {
            "name": self.name,
            "tags": [*self.tags],
            "cpuCount": self.cpu_count,
            "memoryMB": self.memory_mib,
            "diskSizeMB": self.disk_mib,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class RequestedBuild:
    """A build that was asked for."""

    template_id: str
    build_id: str
    alias: str
    tags: Sequence[str]
    wire: Wire = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Wire) -> Self:
        """Read the API's JSON."""
        return cls(wire["templateID"], wire["buildID"], wire["aliases"][0], tuple(wire["tags"]), wire)

    @property
    def path(self) -> str:
        """Where it is in the API."""
        return f"/templates/{segment(self.template_id)}/builds/{segment(self.build_id)}"

    @property
    def name(self) -> str:
        """What a sandbox is started by."""
        return self.alias if "default" in self.tags else f"{self.alias}:{self.tags[0]}"


class TemplateApi:
    """The template routes of a server; every method raises ApiError or UnreachableError."""

    def __init__(self, client: ApiClient) -> None:
        """`client` must be entered."""
        self._client = client

    async def list(self) -> list[TemplateInfo]:
        """All templates."""
        return [TemplateInfo.parse(item) for item in await self._client.pages("/v2/templates", {})]

    async def info(self, name: str) -> TemplateInfo:
        """One template by its id or name, perhaps with a tag, and its latest builds."""
        return TemplateInfo.parse(await self._client.request_object("GET", f"/templates/{segment(name)}"))

    async def delete(self, name: str) -> None:
        """Remove a template, or one build of it if the name has a tag."""
        await self._client.delete_template(name)

    async def by_alias(self, alias: str) -> Wire:
        """Which template a name stands for."""
        return await self._client.request_object("GET", f"/templates/aliases/{segment(alias)}")

    async def tags(self, name: str) -> Sequence[Wire]:
        """The tags of a template, and to which build each points."""
        answer, _ = await self._client.request("GET", f"/templates/{segment(name)}/tags")
        return tuple(answer)

    async def assign_tags(self, target: str, tags: Sequence[str]) -> Wire:
        """Point tags to the build that `target` names."""
        body: Wire = {"target": target, "tags": [*tags]}
        return await self._client.request_object("POST", "/templates/tags", body)

    async def remove_tags(self, name: str, tags: Sequence[str]) -> None:
        """Remove tags; builds that nothing points to go."""
        await self._client.request("DELETE", "/templates/tags", {"name": name, "tags": [*tags]})

    async def builds(self, name: str) -> Sequence[Wire]:
        """All builds of a template that are known, however they went, newest first."""
        answer, _ = await self._client.request("GET", f"/templates/{segment(name)}/builds")
        return tuple(answer)

    async def request_build(self, wanted: Wanted) -> RequestedBuild:
        """Ask for a new build, which then waits for its steps."""
        return RequestedBuild.parse(await self._client.request_object("POST", "/v3/templates", wanted.body()))

    async def start_build(self, build: RequestedBuild, recipe: Wire) -> None:
        """Give a build its steps; `recipe` is the body of E2B's `POST /v2/templates/{id}/builds/{build}`."""
        await self._client.request("POST", f"/v2{build.path}", recipe)

    async def status(self, build: RequestedBuild, offset: int, level: str) -> Wire:
        """How a build goes, and its log from the entry of that number on."""
        query = {"logsOffset": str(offset), "level": level}
        answer, _ = await self._client.request("GET", f"{build.path}/status", query=query)
        return dict(answer)

    async def layers(self, build: RequestedBuild) -> Sequence[Wire]:
        """How far the layers are that are fetched for a build."""
        answer, _ = await self._client.request("GET", f"{build.path}/layers")
        return tuple(answer)

    async def cancel(self, build: RequestedBuild) -> None:
        """End a build; a 409 says that it is over."""
        await self._client.request("DELETE", build.path)

    async def upload(self, build: RequestedBuild, upload: Upload, sent: Callable[[int], None]) -> None:
        """Send an archive, unless the server has it; `sent` hears of the bytes of each piece."""
        path = f"/templates/{segment(build.template_id)}/files/{upload.files_hash}"
        link = await self._client.request_object("GET", path)
        if not link["present"]:
            await self._client.put(link["url"], _pieces(upload, sent), upload.size)


async def _pieces(upload: Upload, sent: Callable[[int], None]) -> AsyncGenerator[bytes]:
    pieces = upload.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
        sent(len(piece))
