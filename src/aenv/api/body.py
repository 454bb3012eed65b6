"""Request bodies: read within a bound, whatever their content type, and checked by a pydantic model."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from aenv.api.errors import validation_message
from aenv.errors import InvalidRequest

MAX_BODY = 1 << 20
"""Bytes. The largest legitimate body, a create with much metadata, is far below."""

BODY_TIMEOUT = 60.0
"""Seconds for a body to come: what E2B's SDKs give a whole request."""

Model = TypeVar("Model", bound=BaseModel)


class BodyTooLarge(InvalidRequest):
    """The body is over `MAX_BODY`."""

    status = 413

    def __init__(self) -> None:
        super().__init__(f"the request body is larger than {MAX_BODY} bytes")


class JsonBody(Generic[Model]):
    """A FastAPI dependency that reads a JSON body as `model`, and tells the schema so."""

    failures = (400, 413)

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> Model:
        """Read the body.

        An absent body counts as `{}`, as SDKs differ in what they send when nothing is set. Raises
        `InvalidRequest` with the field's name for anything that doesn't fit.
        """
        content = await _content(request)
        try:
            return self.model.model_validate_json(content or b"{}")
        except ValidationError as error:
            raise InvalidRequest(validation_message(error.errors(include_url=False))) from error


def json_body(model: type[Model]) -> JsonBody[Model]:
    """A FastAPI dependency that reads a JSON body as `model`."""
    return JsonBody(model)


async def _content(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise BodyTooLarge
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BODY:
                    raise BodyTooLarge
    except TimeoutError as error:
        raise InvalidRequest(f"the request body took more than {BODY_TIMEOUT:g} s") from error
    except ClientDisconnect as error:
        raise InvalidRequest("the connection ended within the request body") from error
    return bytes(content)
