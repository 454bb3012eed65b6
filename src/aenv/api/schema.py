"""The OpenAPI description: FastAPI's own, made true by what the layers around the routes do.

Routes get it right by default. From the shape of a route follow the key it needs and the errors it may
answer; a dependency that reads the request by itself tells what it reads (attributes `model`, `parameter`)
and how that can fail (`failures`). A route with more to say uses `failures()` in its `responses`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from aenv.api.auth import OPEN_ROUTES
from aenv.api.models import Failure
from aenv.api.paging import NEXT_TOKEN_HEADER
from aenv.settings import Settings

Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"

_SCHEMES: Json = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
    "Bearer": {"type": "http", "scheme": "bearer", "description": "the API key, if X-API-KEY is absent"},
}

_SHOULD_RETRY: Json = {
    "description": "whether the same request may be sent again",
    "schema": {"type": "string", "enum": ["true", "false"]},
}
_RETRY_AFTER: Json = {
    "description": "seconds after which it is likely to work",
    "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
}
_NEXT_TOKEN: Json = {
    "description": "`nextToken` of the next page; absent on the last",
    "schema": {"type": "string"},
}

_ERRORS: Mapping[int, tuple[str, Json]] = {
    400: ("The request can't be served as it is.", {}),
    401: ("The API key is missing or wrong.", {}),
    404: ("What the request names doesn't exist.", {}),
    409: ("The state of the sandbox doesn't allow this.", {}),
    413: ("The body is too large.", {}),
    422: ("The Idempotency-Key was used for another request.", {}),
    429: (
        "No more sandboxes may run than run already.",
        {"Should-Retry": _SHOULD_RETRY, "Retry-After": _RETRY_AFTER},
    ),
    500: ("The server, a VM or its guest failed.", {"Should-Retry": _SHOULD_RETRY}),
    507: ("The host's disk is full.", {"Should-Retry": _SHOULD_RETRY, "Retry-After": _RETRY_AFTER}),
    503: ("Not now.", {"Should-Retry": _SHOULD_RETRY, "Retry-After": _RETRY_AFTER}),
}


def failures(*statuses: int) -> dict[int | str, Json]:
    """`responses` of a route that may answer these errors besides those that follow from its shape."""
    return {status: {"description": _ERRORS[status][0]} for status in statuses}


def describe(app: FastAPI, settings: Settings) -> Json:
    """The description of `app`, made at the first call."""
    if app.openapi_schema is None:
        app.openapi_schema = _describe(app, settings)
    return app.openapi_schema


def _describe(app: FastAPI, settings: Settings) -> Json:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    models: list[type[BaseModel]] = [Failure]
    for path, method, route in _operations(app):
        operation = document["paths"][path][method.lower()]
        readers = list(_readers(route.dependant))
        models += [reader.model for reader in readers if hasattr(reader, "model")]
        _complete(operation, path, method, readers)
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    bodies = {model.__name__ for model in models[1:]}
    for name, schema in found["$defs"].items():
        if name in bodies:
            _bound(schema, settings)
        schemas.setdefault(name, schema)
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of error, never sent
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = _SCHEMES
    document["components"]["responses"] = {_name(status): _error(status) for status in _ERRORS}
    return document


def _operations(app: FastAPI) -> Iterator[tuple[str, str, RouteContext]]:
    for route in iter_route_contexts(app.routes):
        if getattr(route, "include_in_schema", False) and route.path_format is not None:
            for method in sorted(route.methods or ()):
                yield route.path_format, method, route


def _readers(dependant: Dependant) -> Iterator[Any]:
    """What the route's dependencies call, nested ones included."""
    for each in dependant.dependencies:
        yield each.call
        yield from _readers(each)


def _complete(operation: Json, path: str, method: str, readers: list[Any]) -> None:
    """Add what FastAPI can't know about one operation."""
    operation["tags"] = [path.removeprefix("/v2").removeprefix("/v3").split("/")[1]]
    parameters = operation.setdefault("parameters", [])
    for reader in readers:
        if hasattr(reader, "model"):
            operation["requestBody"] = _body(reader.model)
        if hasattr(reader, "parameter"):
            parameters.append(reader.parameter)
    _name_path(path, parameters)
    for parameter in parameters:
        parameter["schema"] = _without_null(parameter["schema"])
    _complete_responses(operation["responses"], _shaped(path, method, parameters, readers))
    if any(parameter["name"] == "nextToken" for parameter in parameters):
        operation["responses"]["200"].setdefault("headers", {})[NEXT_TOKEN_HEADER] = _NEXT_TOKEN
    if (method, path) not in OPEN_ROUTES:
        operation["security"] = [{scheme: []} for scheme in _SCHEMES]


def _complete_responses(responses: Json, shaped: Iterable[int]) -> None:
    """Add the errors that follow from an operation's shape, and say what every error looks like."""
    if "HTTPValidationError" in str(responses.get("422")):  # FastAPI's own, sent as a 400 here
        del responses["422"]
    refused = responses.keys() == {"400"}
    for each in shaped:
        if not (refused and each == 404):  # what is always refused is never looked for
            responses.setdefault(str(each), {})
    for status, response in responses.items():
        if int(status) >= 400 and "content" not in response:
            responses[status] = {"$ref": f"#/components/responses/{_name(int(status))}"}


def _shaped(path: str, method: str, parameters: list[Json], readers: list[Any]) -> Iterable[int]:
    """The errors that follow from the shape of an operation."""
    yield 500
    if (method, path) not in OPEN_ROUTES:
        yield 401
    if any(parameter["in"] != "path" for parameter in parameters):
        yield 400
    if "{" in path:
        yield 404
    if "{sandbox_id}" in path and method != "GET":
        yield 409  # its state may not allow it
        yield 503  # the server is stopping, or has no room
        yield 507
    for reader in readers:
        yield from getattr(reader, "failures", ())


def _body(model: type[BaseModel]) -> Json:
    required = any(field.is_required() for field in model.model_fields.values())
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _name_path(path: str, parameters: list[Json]) -> None:
    """Name parts of the path that a route matches but doesn't read."""
    named = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
    for part in path.split("/"):
        name = part.strip("{}")
        if part.startswith("{") and name not in named:
            parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})


def _without_null(schema: Json) -> Json:
    """A query has no null: what is None here is a parameter that is absent."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **options[0]}


def _bound(schema: Json, settings: Settings) -> None:
    """Write the limits that this server has been given into the schema of a body."""
    limits = {
        "timeout": settings.max_timeout,
        "duration": settings.max_timeout,
        "count": settings.max_fork,
    }
    for name, limit in limits.items():
        field = schema["properties"].get(name, {})
        for option in field.get("anyOf", [field]):
            if option.get("type") == "integer":
                option.update(minimum=1, maximum=limit)


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")


def _error(status: int) -> Json:
    description, headers = _ERRORS[status]
    schema = {"$ref": _REFERENCE.format(model=Failure.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"description": description, "content": content} | ({"headers": headers} if headers else {})
