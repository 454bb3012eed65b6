"""Response bodies of the template routes, with the E2B contract's names."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from aenv.api.models import ResponseBody, moment
from aenv.sandboxes.models import ENVD_VERSION, Template


class ListedTemplate(ResponseBody):
    """E2B's `Template`. Who made it and how often it was used isn't recorded: null and 0."""

    template_id: str = Field(alias="templateID")
    build_id: str = Field(alias="buildID")
    cpu_count: int
    memory_mb: int = Field(alias="memoryMB")
    disk_size_mb: int = Field(alias="diskSizeMB")
    public: bool = True
    aliases: list[str]
    names: list[str]
    created_at: datetime
    updated_at: datetime
    created_by: None = None
    last_spawned_at: datetime | None = None
    spawn_count: int = 0
    build_count: int = 1
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


class TemplateWithBuilds(ListedTemplate):
    """A template with its builds: the current one."""

    builds: list[TemplateBuild]

    @classmethod
    def of(cls, template: Template) -> TemplateWithBuilds:
        """The answer that describes `template` in full."""
        build = TemplateBuild(
            build_id=template.build_id,
            created_at=moment(template.created_at),
            updated_at=moment(template.updated_at),
            finished_at=moment(template.updated_at),
            cpu_count=template.resources.cpu_count,
            memory_mb=template.resources.memory_mib,
            disk_size_mb=template.resources.disk_mib,
        )
        return cls(**_common(template), builds=[build])


class TemplateAlias(ResponseBody):
    """Whom an alias names."""

    template_id: str = Field(alias="templateID")
    public: bool = True


def _common(template: Template) -> dict[str, Any]:
    return {
        "template_id": template.id,
        "build_id": template.build_id,
        "cpu_count": template.resources.cpu_count,
        "memory_mb": template.resources.memory_mib,
        "disk_size_mb": template.resources.disk_mib,
        "aliases": template.names,
        "names": template.names,
        "created_at": moment(template.created_at),
        "updated_at": moment(template.updated_at),
    }
