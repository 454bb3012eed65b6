"""The header `Idempotency-Key`, with which a create can be sent again."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from aenv.errors import InvalidRequest, KeyReused

HEADER = "Idempotency-Key"

_KEY = "[a-z0-9-]{1,255}"


class _Reader:
    """Reads the key, and tells the schema so."""

    failures = (400, KeyReused.status)
    parameter: dict[str, Any] = {  # noqa: RUF012 -- a constant; OpenAPI's form is a dict
        "name": HEADER,
        "in": "header",
        "required": False,
        "description": "With the same key and body, a request makes one sandbox in a day.",
        "schema": {"type": "string", "pattern": f"^{_KEY}$"},
    }

    async def __call__(self, request: Request) -> str | None:
        """The key, or None. Raises InvalidRequest for one that breaks the rules."""
        given = request.headers.getlist(HEADER)
        if not given:
            return None
        if len(given) > 1 or re.fullmatch(_KEY, given[0]) is None:
            raise InvalidRequest(f"{HEADER}: must be 1 to 255 of a-z, 0-9 and '-', and given once")
        return given[0]


IdempotencyKey = Annotated[str | None, Depends(_Reader())]
"""The key, or None if there is none. Raises InvalidRequest for one that breaks the rules."""
