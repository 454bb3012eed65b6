"""Both generations of the E2B sandbox routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from aenv.api import unsupported
from aenv.api.body import json_body
from aenv.api.models import (
    ConnectSandbox,
    ConnectSandboxV2,
    ForkResult,
    ForkSandbox,
    NetworkUpdate,
    NewSandbox,
    NewSnapshot,
    PauseSandbox,
    RefreshSandbox,
    ResumeSandbox,
    SandboxDetail,
    SetTimeout,
    SnapshotInfo,
    StartedSandbox,
)
from aenv.api.routes.paths import SandboxId
from aenv.errors import InvalidRequest
from aenv.sandboxes.base import Sandboxes
from aenv.sandboxes.models import CreateSandbox
from aenv.settings import Settings


def _checked_timeout(value: int | None, default: int, settings: Settings, field: str = "timeout") -> int:
    """Seconds within what this server allows. Raises `InvalidRequest` with the field's name."""
    if value is None:
        return default
    if not 0 < value <= settings.max_timeout:
        raise InvalidRequest(f"{field}: must be between 1 and {settings.max_timeout} seconds, not {value}")
    return value


def _create_request(body: NewSandbox, timeout: int, *, secure: bool, settings: Settings) -> CreateSandbox:
    """What a create body asks of the service. Raises `InvalidRequest` for what can't be served."""
    unsupported.check_create(body)
    network = {} if body.network is None else body.network.model_dump(by_alias=True, exclude_none=True)
    if network.get("allowPublicTraffic") is False and not secure:
        raise InvalidRequest("network.allowPublicTraffic: false needs a secure sandbox")
    return CreateSandbox(
        template=body.template_id,
        timeout=timeout,
        auto_pause=settings.auto_pause if body.auto_pause is None else body.auto_pause,
        auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
        secure=secure,
        metadata=body.metadata or {},
        env=body.env_vars or {},
        network=network,
        allow_internet_access=body.allow_internet_access,
    )


def starting_router(sandboxes: Sandboxes, settings: Settings) -> APIRouter:
    """Routes that answer with a sandbox to work with: create, connect, resume, fork."""
    router = APIRouter()

    def checked(value: int | None, default: int) -> int:
        return _checked_timeout(value, default, settings)

    async def connected(
        sandbox_id: str, timeout: int, memory: bool | None, response: Response
    ) -> StartedSandbox:
        unsupported.check_memory(memory)
        sandbox, resumed = await sandboxes.connect(sandbox_id, timeout)
        response.status_code = 201 if resumed else 200
        return StartedSandbox.of(sandbox, settings.domain)

    @router.post("/v2/sandboxes", status_code=201)
    async def create_v2(body: Annotated[NewSandbox, Depends(json_body(NewSandbox))]) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout)
        request = _create_request(body, timeout, secure=True, settings=settings)
        return StartedSandbox.of(await sandboxes.create(request), settings.domain)

    @router.post("/sandboxes", status_code=201)
    async def create_v1(body: Annotated[NewSandbox, Depends(json_body(NewSandbox))]) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout_v1)
        request = _create_request(body, timeout, secure=bool(body.secure), settings=settings)
        return StartedSandbox.of(await sandboxes.create(request), settings.domain)

    @router.post("/v2/sandboxes/{sandbox_id}/connect")
    async def connect_v2(
        sandbox_id: SandboxId,
        body: Annotated[ConnectSandboxV2, Depends(json_body(ConnectSandboxV2))],
        response: Response,
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout)
        return await connected(sandbox_id, timeout, body.memory, response)

    @router.post("/sandboxes/{sandbox_id}/connect")
    async def connect_v1(
        sandbox_id: SandboxId,
        body: Annotated[ConnectSandbox, Depends(json_body(ConnectSandbox))],
        response: Response,
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout_v1)
        return await connected(sandbox_id, timeout, body.memory, response)

    @router.post("/sandboxes/{sandbox_id}/resume", status_code=201)
    async def resume(
        sandbox_id: SandboxId, body: Annotated[ResumeSandbox, Depends(json_body(ResumeSandbox))]
    ) -> StartedSandbox:
        unsupported.check_memory(body.memory)
        timeout = checked(body.timeout, settings.default_timeout_v1)
        sandbox = await sandboxes.resume(sandbox_id, timeout, body.auto_pause)
        return StartedSandbox.of(sandbox, settings.domain)

    @router.post("/sandboxes/{sandbox_id}/fork", status_code=201)
    async def fork(
        sandbox_id: SandboxId, body: Annotated[ForkSandbox, Depends(json_body(ForkSandbox))]
    ) -> list[ForkResult]:
        if not 1 <= body.count <= settings.max_fork:
            limit = f"must be between 1 and {settings.max_fork}, the limit of this server"
            raise InvalidRequest(f"count: {limit}, not {body.count}")
        timeout = None if body.timeout is None else checked(body.timeout, settings.default_timeout)
        results = await sandboxes.fork(sandbox_id, body.count, timeout)
        return [ForkResult.of(result, settings.domain) for result in results]

    return router


def changing_router(sandboxes: Sandboxes, settings: Settings) -> APIRouter:
    """Routes that look at or change one sandbox."""
    router = APIRouter()

    @router.get("/sandboxes/{sandbox_id}")
    async def info(sandbox_id: SandboxId) -> SandboxDetail:
        return SandboxDetail.describe(await sandboxes.get(sandbox_id), settings.domain)

    @router.delete("/sandboxes/{sandbox_id}", status_code=204)
    async def kill(sandbox_id: SandboxId) -> None:
        await sandboxes.kill(sandbox_id)

    @router.post("/sandboxes/{sandbox_id}/timeout", status_code=204)
    async def set_timeout(
        sandbox_id: SandboxId, body: Annotated[SetTimeout, Depends(json_body(SetTimeout))]
    ) -> None:
        timeout = _checked_timeout(body.timeout, settings.default_timeout, settings)
        await sandboxes.set_timeout(sandbox_id, timeout)

    @router.post("/sandboxes/{sandbox_id}/refreshes", status_code=204)
    async def refresh(
        sandbox_id: SandboxId, body: Annotated[RefreshSandbox, Depends(json_body(RefreshSandbox))]
    ) -> None:
        duration = _checked_timeout(body.duration, settings.default_timeout_v1, settings, "duration")
        await sandboxes.refresh(sandbox_id, duration)

    @router.post("/sandboxes/{sandbox_id}/pause", status_code=204)
    async def pause(
        sandbox_id: SandboxId, body: Annotated[PauseSandbox, Depends(json_body(PauseSandbox))]
    ) -> None:
        unsupported.check_memory(body.memory)
        await sandboxes.pause(sandbox_id, require_healthy_guest=bool(body.require_healthy_guest))

    @router.post("/sandboxes/{sandbox_id}/snapshots", status_code=201)
    async def snapshot(
        sandbox_id: SandboxId, body: Annotated[NewSnapshot, Depends(json_body(NewSnapshot))]
    ) -> SnapshotInfo:
        unsupported.check_memory(body.memory)
        return SnapshotInfo.of(await sandboxes.snapshot(sandbox_id, body.name))

    @router.put("/sandboxes/{sandbox_id}/network", status_code=204)
    async def network(
        sandbox_id: SandboxId, body: Annotated[NetworkUpdate, Depends(json_body(NetworkUpdate))]
    ) -> None:
        await sandboxes.get(sandbox_id)
        unsupported.check_network_update(body)

    return router
