"""Tags of templates and snapshots, and the history of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from aenv.api.body import json_body
from aenv.api.paging import MAX_LIMIT, Limit, newest_first, open_token, seal_token
from aenv.api.routes.paths import TagName, TemplateName
from aenv.api.schema import failures
from aenv.api.tag_models import (
    AssignedTags,
    Assignment,
    Assignments,
    AssignTags,
    RemoveTags,
    TagCount,
    TagExists,
    TagGroup,
    TagGroups,
    TemplateTag,
)
from aenv.errors import InvalidRequest, NotFound
from aenv.sandboxes.base import Templates
from aenv.sandboxes.models import TagAssignment
from aenv.templates.names import parse_tag

Cursor = Annotated[str | None, Query(max_length=256)]
GroupsCursor = Annotated[str | None, Query(alias="tagsCursor", max_length=512)]
GroupsLimit = Annotated[int, Query(alias="tagsLimit", ge=1, le=MAX_LIMIT)]
AssignmentLimit = Annotated[int, Query(alias="assignmentLimit", ge=1, le=MAX_LIMIT)]
Sort = Literal["latest_asc", "latest_desc", "name_asc", "name_desc"]


def tags_router(templates: Templates) -> APIRouter:
    """Assign and remove tags, and look at them."""
    router = APIRouter()

    @router.post("/templates/tags", status_code=201, responses=failures(404))
    async def assign(body: Annotated[AssignTags, Depends(json_body(AssignTags))]) -> AssignedTags:
        build, tags = await templates.assign_tags(body.target, body.tags)
        return AssignedTags(tags=tags, build_id=build.id)

    @router.delete("/templates/tags", status_code=204, responses=failures(404))
    async def remove(body: Annotated[RemoveTags, Depends(json_body(RemoveTags))]) -> None:
        await templates.remove_tags(body.name, body.tags)

    @router.get("/templates/{name}/tags")
    async def tags(name: TemplateName) -> list[TemplateTag]:
        return [TemplateTag.of(assignment) for assignment in await templates.tags(name)]

    @router.get("/templates/{name}/tags/count")
    async def count(name: TemplateName) -> TagCount:
        return TagCount(total=len(await templates.tags(name)))

    @router.get("/templates/{name}/tags/exists")
    async def exists(name: TemplateName, tag: str) -> TagExists:
        wanted = parse_tag(tag)
        found = any(assignment.tag == wanted for assignment in await templates.tags(name))
        return TagExists(exists=found, normalized_tag=wanted)

    @router.get("/templates/{name}/tags/groups")
    async def groups(
        name: TemplateName,
        *,
        assignment_limit: AssignmentLimit = 6,
        limit: GroupsLimit = 25,
        cursor: GroupsCursor = None,
        search: str = "",
        sort: Sort = "latest_desc",
    ) -> TagGroups:
        found = _grouped(await templates.assignments(name), search.strip().lower())
        page, following = _page(found, sort, limit, cursor)
        return TagGroups(
            tags=[_group(assignments, assignment_limit) for assignments in page], next_cursor=following
        )

    @router.get("/templates/{name}/tags/{tag}/assignments")
    async def assignments(
        name: TemplateName, tag: TagName, cursor: Cursor = None, limit: Limit = 50
    ) -> Assignments:
        wanted = parse_tag(tag)
        history = [each for each in await templates.assignments(name) if each.tag == wanted]
        if not history:
            raise NotFound(f"tag {wanted!r} of template {name!r} was not found")
        page, following = newest_first(
            history, lambda each: (each.assigned_at, each.id), limit=limit, token=cursor
        )
        return Assignments(data=[Assignment.of(each) for each in page], next_cursor=following)

    return router


def _grouped(history: Sequence[TagAssignment], search: str) -> list[list[TagAssignment]]:
    """The assignments of each tag whose name contains `search`, the latest first."""
    by_tag: dict[str, list[TagAssignment]] = {}
    for assignment in history:
        if search in assignment.tag:
            by_tag.setdefault(assignment.tag, []).append(assignment)
    return list(by_tag.values())


def _group(assignments: list[TagAssignment], limit: int) -> TagGroup:
    shown = [Assignment.of(each) for each in assignments[:limit]]
    return TagGroup(tag=assignments[0].tag, assignments=shown, has_more=len(assignments) > limit)


def _page(
    groups: list[list[TagAssignment]], sort: Sort, limit: int, cursor: str | None
) -> tuple[list[list[TagAssignment]], str | None]:
    """One page of groups in the order asked for, and the cursor of the next."""
    descending = sort.endswith("_desc")

    def place(group: list[TagAssignment]) -> tuple[float, str]:
        return (0.0 if sort.startswith("name") else group[0].assigned_at, group[0].tag)

    ordered = sorted(groups, key=place, reverse=descending)
    if cursor:
        after = _after(cursor, sort)
        ordered = [each for each in ordered if (place(each) < after if descending else place(each) > after)]
    page = ordered[:limit]
    if len(ordered) <= limit:
        return page, None
    time, tag = place(page[-1])
    return page, seal_token(f"{sort}__{time!r}__{tag}")


def _after(cursor: str, sort: Sort) -> tuple[float, str]:
    """The place after which a page starts. Raises InvalidRequest for what isn't a cursor of this order."""
    made_by, _, rest = open_token(cursor).partition("__")
    time, _, tag = rest.partition("__")
    try:
        place = (float(time), parse_tag(tag))
    except (ValueError, InvalidRequest) as error:
        raise InvalidRequest("tagsCursor: not a cursor of this list") from error
    if made_by != sort:
        raise InvalidRequest("tagsCursor: made by a list with another order")
    return place
