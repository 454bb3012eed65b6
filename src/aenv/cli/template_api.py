"""What the CLI needs of the E2B API's template routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from aenv.cli.api import ApiClient, Wire, segment


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
