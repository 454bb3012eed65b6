"""The one team that a deployment has, as E2B's command line asks for it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator

from aenv.api.template_models import Team
from aenv.templates.names import TEAM

TEAM_ID = "00000000-0000-4000-8000-000000000000"
"""There is one team, the same in every deployment."""


def _known(team: str) -> str:
    if team not in {TEAM_ID, TEAM}:
        raise ValueError(f"there is one team, {TEAM_ID}, not {team!r}")
    return team


TeamId = Annotated[Annotated[str, AfterValidator(_known)] | None, Query(alias="teamID")]


def teams_router(api_key: str) -> APIRouter:
    """`GET /teams`. Who may ask has the key already."""
    router = APIRouter()

    @router.get("/teams")
    async def teams() -> list[Team]:
        return [Team(team_id=TEAM_ID, name=TEAM, api_key=api_key)]

    return router
