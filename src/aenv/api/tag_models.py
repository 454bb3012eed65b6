"""Bodies of the tag routes, with the E2B contract's names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from aenv.api.models import RequestBody, ResponseBody, moment
from aenv.sandboxes.models import TagAssignment

Tag = Annotated[str, Field(json_schema_extra={"pattern": r"^\s*[A-Za-z0-9_.-]{1,128}\s*$"})]
"""As the schema has it. `aenv.templates.names` says what a tag is, and refuses others in words."""


class AssignTags(RequestBody):
    """Body of `POST /templates/tags`."""

    target: str = Field(min_length=1, max_length=512)
    tags: list[Tag] = Field(max_length=100)


class RemoveTags(RequestBody):
    """Body of `DELETE /templates/tags`."""

    name: str = Field(min_length=1, max_length=512)
    tags: list[Tag] = Field(max_length=100)


class AssignedTags(ResponseBody):
    """To which build the tags point now."""

    tags: Sequence[str]
    build_id: str = Field(alias="buildID")


class TemplateTag(ResponseBody):
    """One tag."""

    tag: str
    build_id: str = Field(alias="buildID")
    created_at: datetime

    @classmethod
    def of(cls, assignment: TagAssignment) -> TemplateTag:
        """The tag that was assigned."""
        return cls(
            tag=assignment.tag, build_id=assignment.build_id, created_at=moment(assignment.assigned_at)
        )


class TagCount(ResponseBody):
    """How many tags there are."""

    total: int


class TagExists(ResponseBody):
    """Whether a tag exists."""

    exists: bool
    normalized_tag: str


class Assignment(ResponseBody):
    """One assignment of a tag."""

    assignment_id: str
    build_id: str
    assigned_at: datetime
    build_created_at: datetime
    build_finished_at: datetime

    @classmethod
    def of(cls, assignment: TagAssignment) -> Assignment:
        """The answer that describes `assignment`."""
        created = moment(assignment.build_created_at)
        return cls(
            assignment_id=assignment.id,
            build_id=assignment.build_id,
            assigned_at=moment(assignment.assigned_at),
            build_created_at=created,
            build_finished_at=created,
        )


class Assignments(ResponseBody):
    """A page of a tag's history."""

    data: list[Assignment]
    next_cursor: str | None


class TagGroup(ResponseBody):
    """A tag with the latest part of its history."""

    tag: str
    assignments: list[Assignment]
    has_more: bool


class TagGroups(ResponseBody):
    """A page of tags."""

    tags: list[TagGroup]
    next_cursor: str | None
