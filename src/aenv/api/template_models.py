"""Bodies of the template routes, with the E2B contract's names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from aenv.api.models import RequestBody, ResponseBody, moment
from aenv.sandboxes.models import ENVD_VERSION, Build, Template


class ListedTemplate(ResponseBody):
    """E2B's `Template`. There are no users, so that nobody has made it."""

    template_id: str = Field(alias="templateID")
    build_id: str = Field(alias="buildID")
    cpu_count: int
    memory_mb: int = Field(alias="memoryMB")
    disk_size_mb: int = Field(alias="diskSizeMB")
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: datetime
    updated_at: datetime
    created_by: None = None
    last_spawned_at: datetime | None
    spawn_count: int
    build_count: int
    envd_version: str = ENVD_VERSION
    build_status: Literal["ready"] = "ready"

    @classmethod
    def of(cls, template: Template) -> ListedTemplate:
        """The list's row for `template`."""
        return cls(**_common(template))


class TemplateBuild(ResponseBody):
    """One build of a template."""

    build_id: str = Field(alias="buildID")
    status: Literal["ready"] = "ready"
    created_at: datetime
    updated_at: datetime
    finished_at: datetime
    cpu_count: int
    memory_mb: int = Field(alias="memoryMB")
    disk_size_mb: int = Field(alias="diskSizeMB")
    envd_version: str = ENVD_VERSION

    @classmethod
    def of(cls, build: Build) -> TemplateBuild:
        """The answer that describes `build`."""
        created = moment(build.created_at)
        return cls(
            build_id=build.id,
            created_at=created,
            updated_at=created,
            finished_at=created,
            cpu_count=build.resources.cpu_count,
            memory_mb=build.resources.memory_mib,
            disk_size_mb=build.resources.disk_mib,
        )


class TemplateWithBuilds(ListedTemplate):
    """A template with a page of its builds."""

    builds: list[TemplateBuild]

    @classmethod
    def describe(cls, template: Template, builds: Sequence[Build]) -> TemplateWithBuilds:
        """The answer that describes `template` in full."""
        return cls(**_common(template), builds=[TemplateBuild.of(build) for build in builds])


class TemplateAlias(ResponseBody):
    """Whom an alias names."""

    template_id: str = Field(alias="templateID")
    public: bool


class TemplateNames(ResponseBody):
    """The answer to an update."""

    names: list[str]


class UpdateTemplate(RequestBody):
    """Body of `PATCH`."""

    public: bool | None = None


class Team(ResponseBody):
    """The one team of a deployment."""

    team_id: str = Field(alias="teamID")
    name: str
    api_key: str
    is_default: bool = True


def _common(template: Template) -> dict[str, Any]:
    resources = template.build.resources
    return {
        "template_id": template.id,
        "build_id": template.build.id,
        "cpu_count": resources.cpu_count,
        "memory_mb": resources.memory_mib,
        "disk_size_mb": resources.disk_mib,
        "public": template.public,
        "aliases": template.aliases,
        "names": template.names,
        "created_at": moment(template.created_at),
        "updated_at": moment(template.updated_at),
        "last_spawned_at": None if template.last_spawned_at is None else moment(template.last_spawned_at),
        "spawn_count": template.spawn_count,
        "build_count": template.build_count,
    }
