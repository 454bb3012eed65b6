"""What goes over the wire: request and response bodies with the E2B contract's names.

Requests are read strictly: a number is a number, never a text that looks like one, and a field that nobody
knows is refused, since ignoring it would leave undone what it asks for. Responses leave out what isn't set,
except the fields the contract calls nullable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from aenv.errors import AenvError
from aenv.guest import ENVD_PORT
from aenv.sandboxes.models import ENVD_VERSION, PORT_MARK, PauseMode, Sandbox, Template
from aenv.sandboxes.states import State, public_state

CLIENT_ID = "aenv"
"""E2B's name for the node; SDKs require the field and make nothing of it."""

_EPOCH = datetime.fromtimestamp(0, UTC)

Value = TypeVar("Value")
Omitted = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]
"""A response field that is left out rather than null."""


def _no_nul(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if "\0" in name or "\0" in value:
            raise ValueError("NUL characters aren't allowed")
    return values


def _environment(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if not name or "=" in name:
            raise ValueError(f"{name!r} can't be the name of an environment variable")
    return _no_nul(values)


Metadata = Annotated[dict[str, str], AfterValidator(_no_nul)]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]


_LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_MASK = re.compile(rf"({_LABEL}(\.{_LABEL})*|\[[0-9a-fA-F:.]{{2,45}}\])(:[0-9]{{1,5}})?")


def _mask_host(text: str) -> str:
    if _MASK.fullmatch(text.replace(PORT_MARK, "65535")) is None:
        raise ValueError(
            f"{text!r} isn't a host, perhaps with a port; {PORT_MARK} stands for the sandbox's port"
        )
    return text


def _https_port(port: int) -> int:
    if not 1 <= port <= 65535 or port == ENVD_PORT:
        raise ValueError(f"must be from 1 to 65535 and not the agent's port {ENVD_PORT}")
    return port


MaskHost = Annotated[str, Field(max_length=253), AfterValidator(_mask_host)]
HttpsPort = Annotated[int, AfterValidator(_https_port)]


class RequestBody(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid", frozen=True)


class AutoResume(RequestBody):
    """Whether traffic resumes the sandbox."""

    enabled: bool


class Network(RequestBody):
    """E2B's network configuration. What concerns egress is not supported; see `unsupported`."""

    allow_public_traffic: bool | None = None
    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    dns_servers: list[str] | None = None
    egress_proxy: dict[str, Any] | None = None
    mask_request_host: MaskHost | None = None
    https_ports: Annotated[list[HttpsPort], Field(max_length=100)] | None = None
    rules: dict[str, Any] | None = None


class NetworkUpdate(Network):
    """Body of `PUT /sandboxes/{id}/network`, which replaces the configuration."""

    allow_internet_access: bool | None = Field(None, alias="allow_internet_access")


class NewSandbox(RequestBody):
    """Body of both generations of create; `secure` belongs to the first only."""

    template_id: str = Field(alias="templateID", min_length=1, max_length=512)
    timeout: int | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = Field(None, alias="allow_internet_access")
    network: Network | None = None
    metadata: Metadata | None = None
    env_vars: Environment | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] | None = None


class ConnectSandbox(RequestBody):
    """Body of the old connect: the timeout must be given."""

    timeout: int
    memory: bool | None = None


class ConnectSandboxV2(RequestBody):
    """Body of the new connect."""

    timeout: int | None = None
    memory: bool | None = None


class ResumeSandbox(RequestBody):
    """Body of resume."""

    timeout: int | None = None
    auto_pause: bool | None = None
    memory: bool | None = None


class PauseSandbox(RequestBody):
    """Body of pause."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class SetTimeout(RequestBody):
    """Body of timeout."""

    timeout: int


class RefreshSandbox(RequestBody):
    """Body of refreshes."""

    duration: int | None = None


class ForkSandbox(RequestBody):
    """Body of fork."""

    timeout: int | None = None
    count: int = 1


class NewSnapshot(RequestBody):
    """Body of snapshot creation."""

    name: str | None = Field(None, min_length=1, max_length=512)
    memory: bool | None = None


class RollbackSandbox(RequestBody):
    """Body of rollback."""

    snapshot_id: str = Field(alias="snapshotID", min_length=1, max_length=512)


class ResponseBody(BaseModel):
    """Base of all response bodies. Fields are set by their Python names."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        frozen=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema, in which fields that may be left out are never null, and all others required."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        for name, field in cls.model_fields.items():
            if field.exclude_if is not None and (alias := field.alias or name) in schema["properties"]:
                _make_optional(schema, alias)
        return schema


def _make_optional(schema: JsonSchemaValue, name: str) -> None:
    schema["required"] = [each for each in schema.get("required", ()) if each != name]
    described = schema["properties"][name]
    described.pop("default", None)
    (option,) = (option for option in described.pop("anyOf") if option != {"type": "null"})
    described.update(option)


class StartedSandbox(ResponseBody):
    """E2B's `Sandbox`: the answer of create, connect, resume and fork."""

    template_id: str = Field(alias="templateID")
    sandbox_id: str = Field(alias="sandboxID")
    client_id: str = Field(CLIENT_ID, alias="clientID")
    envd_version: str = ENVD_VERSION
    alias: Omitted[str] = None
    envd_access_token: Omitted[str] = None
    traffic_access_token: str | None
    domain: str | None

    @classmethod
    def of(cls, sandbox: Sandbox, domain: str | None) -> StartedSandbox:
        """The answer that describes `sandbox`."""
        return cls(
            template_id=sandbox.template_id,
            sandbox_id=sandbox.id,
            alias=sandbox.alias,
            envd_access_token=sandbox.envd_token,
            traffic_access_token=sandbox.traffic_token,
            domain=domain,
        )


class Failure(ResponseBody):
    """The contract's error body, inside another answer."""

    code: int
    message: str
    error_code: Omitted[str] = Field(None, alias="error_code")


class ForkResult(ResponseBody):
    """What became of one child: exactly one of the two is set."""

    sandbox: Omitted[StartedSandbox] = None
    error: Omitted[Failure] = None

    @classmethod
    def of(cls, result: Sandbox | AenvError, domain: str | None) -> ForkResult:
        """The answer for one child."""
        if isinstance(result, AenvError):
            failure = Failure(code=result.status, message=result.message, error_code=result.error_code)
            return cls(error=failure)
        return cls(sandbox=StartedSandbox.of(result, domain))


class ListedSandbox(ResponseBody):
    """One sandbox in a list."""

    template_id: str = Field(alias="templateID")
    sandbox_id: str = Field(alias="sandboxID")
    client_id: str = Field(CLIENT_ID, alias="clientID")
    alias: Omitted[str] = None
    started_at: datetime
    end_at: datetime
    cpu_count: int
    memory_mb: int = Field(alias="memoryMB")
    disk_size_mb: int = Field(alias="diskSizeMB")
    metadata: Mapping[str, str]
    state: Literal["running", "paused"]
    envd_version: str = ENVD_VERSION
    envd_unresponsive_at_pause: Omitted[bool] = None
    pause_mode: Omitted[PauseMode] = None
    """What the pause kept, once it is over. E2B shows it in the detail only."""
    pause_reason: Omitted[str] = None
    """Why the server paused it though nobody asked for that. Not in E2B's API."""

    @classmethod
    def of(cls, sandbox: Sandbox) -> ListedSandbox:
        """The list's row for `sandbox`."""
        return cls(**_common(sandbox))


class Lifecycle(ResponseBody):
    """What happens at the deadline, and on traffic after it."""

    auto_resume: bool
    on_timeout: Literal["kill", "pause"]


class SandboxDetail(ListedSandbox):
    """Everything about one sandbox."""

    envd_access_token: Omitted[str]
    allow_internet_access: bool | None
    domain: str | None
    network: Omitted[Mapping[str, Any]]
    lifecycle: Lifecycle

    @classmethod
    def describe(cls, sandbox: Sandbox, domain: str | None) -> SandboxDetail:
        """The answer that describes `sandbox` in full."""
        return cls(
            **_common(sandbox),
            envd_access_token=sandbox.envd_token,
            allow_internet_access=sandbox.allow_internet_access,
            domain=domain,
            network=sandbox.network or None,
            lifecycle=Lifecycle(
                auto_resume=sandbox.auto_resume, on_timeout="pause" if sandbox.auto_pause else "kill"
            ),
        )


def _common(sandbox: Sandbox) -> dict[str, Any]:
    """Fields that a list and a detail share."""
    return {
        "template_id": sandbox.template_id,
        "sandbox_id": sandbox.id,
        "alias": sandbox.alias,
        "started_at": moment(sandbox.started_at),
        "end_at": moment(sandbox.end_at),
        "cpu_count": sandbox.resources.cpu_count,
        "memory_mb": sandbox.resources.memory_mib,
        "disk_size_mb": sandbox.resources.disk_mib,
        "metadata": sandbox.metadata,
        "state": public_state(sandbox.state),
        "envd_unresponsive_at_pause": sandbox.envd_unresponsive_at_pause or None,
        "pause_mode": sandbox.pause_mode if sandbox.state is State.PAUSED else None,
        "pause_reason": sandbox.reason if sandbox.state is State.PAUSED else None,
    }


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as an aware time, which goes over the wire as RFC 3339 with `Z`.

    Rounded down to microseconds, so that a list of what started at or after this time has the sandbox.
    """
    return _EPOCH + timedelta(microseconds=math.floor(Fraction(seconds) * 1_000_000))


class SnapshotInfo(ResponseBody):
    """One snapshot; E2B's fields first, then AgentENV's own."""

    snapshot_id: str = Field(alias="snapshotID")
    names: list[str]
    cpu_count: int
    memory_mb: int = Field(alias="memoryMB")
    disk_size_mb: int = Field(alias="diskSizeMB")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, snapshot: Template) -> SnapshotInfo:
        """The answer that describes `snapshot`."""
        return cls(
            snapshot_id=snapshot.snapshot_id,
            names=snapshot.names,
            cpu_count=snapshot.build.resources.cpu_count,
            memory_mb=snapshot.build.resources.memory_mib,
            disk_size_mb=snapshot.build.resources.disk_mib,
            created_at=moment(snapshot.created_at),
            updated_at=moment(snapshot.build.created_at),
        )
