"""Both generations of the E2B sandbox routes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from aenv.api import unsupported
from aenv.api.body import json_body
from aenv.api.idempotency import IdempotencyKey
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
    RollbackSandbox,
    SandboxDetail,
    SetTimeout,
    SnapshotInfo,
    StartedSandbox,
)
from aenv.api.routes.paths import SandboxId
from aenv.api.schema import failures
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
    if secure and body.secure is False:
        raise InvalidRequest("secure: false is for POST /sandboxes; sandboxes of /v2 are always secure")
    network = {} if body.network is None else body.network.model_dump(by_alias=True, exclude_none=True)
    if network.get("allowPublicTraffic") is False and not secure:
        raise InvalidRequest("network.allowPublicTraffic: false needs a secure sandbox")
    auto_pause = settings.auto_pause if body.auto_pause is None else body.auto_pause
    auto_resume = body.auto_resume is not None and body.auto_resume.enabled
    keeps_memory = body.auto_pause_memory is not False
    if not keeps_memory and not auto_pause:
        raise InvalidRequest("autoPauseMemory: false needs autoPause")
    if not keeps_memory and auto_resume:
        raise InvalidRequest("autoPauseMemory: false and autoResume exclude each other")
    return CreateSandbox(
        template=body.template_id,
        timeout=timeout,
        auto_pause=auto_pause,
        auto_pause_memory=keeps_memory,
        auto_resume=auto_resume,
        secure=secure,
        metadata=body.metadata or {},
        env=body.env_vars or {},
        network=network,
        allow_internet_access=body.allow_internet_access,
    )


def starting_router(sandboxes: Sandboxes, settings: Settings) -> APIRouter:
    """Routes that answer with a sandbox to work with: create, connect, resume, fork."""
    router = APIRouter()
    resumed: dict[int | str, dict[str, Any]] = {
        200: {"description": "It was running."},
        201: {"description": "It was paused and has been resumed.", "model": StartedSandbox},
        **failures(429),
    }

    def checked(value: int | None, default: int) -> int:
        return _checked_timeout(value, default, settings)

    async def connected(
        sandbox_id: str, timeout: int, memory: bool | None, response: Response
    ) -> StartedSandbox:
        sandbox, was_paused = await sandboxes.connect(sandbox_id, timeout, memory=memory is not False)
        response.status_code = 201 if was_paused else 200
        return StartedSandbox.of(sandbox, settings.public_domain)

    @router.post("/v2/sandboxes", status_code=201, responses=failures(404, 429, 503))
    async def create_v2(
        body: Annotated[NewSandbox, Depends(json_body(NewSandbox))], key: IdempotencyKey
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout)
        request = _create_request(body, timeout, secure=True, settings=settings)
        return StartedSandbox.of(await sandboxes.create(request, key), settings.public_domain)

    @router.post("/sandboxes", status_code=201, responses=failures(404, 429, 503))
    async def create_v1(
        body: Annotated[NewSandbox, Depends(json_body(NewSandbox))], key: IdempotencyKey
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout_v1)
        request = _create_request(body, timeout, secure=bool(body.secure), settings=settings)
        return StartedSandbox.of(await sandboxes.create(request, key), settings.public_domain)

    @router.post("/v2/sandboxes/{sandbox_id}/connect", responses=resumed)
    async def connect_v2(
        sandbox_id: SandboxId,
        body: Annotated[ConnectSandboxV2, Depends(json_body(ConnectSandboxV2))],
        response: Response,
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout)
        return await connected(sandbox_id, timeout, body.memory, response)

    @router.post("/sandboxes/{sandbox_id}/connect", responses=resumed)
    async def connect_v1(
        sandbox_id: SandboxId,
        body: Annotated[ConnectSandbox, Depends(json_body(ConnectSandbox))],
        response: Response,
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout_v1)
        return await connected(sandbox_id, timeout, body.memory, response)

    @router.post("/sandboxes/{sandbox_id}/resume", status_code=201, responses=failures(429))
    async def resume(
        sandbox_id: SandboxId, body: Annotated[ResumeSandbox, Depends(json_body(ResumeSandbox))]
    ) -> StartedSandbox:
        timeout = checked(body.timeout, settings.default_timeout_v1)
        memory = body.memory is not False
        sandbox = await sandboxes.resume(sandbox_id, timeout, body.auto_pause, memory=memory)
        return StartedSandbox.of(sandbox, settings.public_domain)

    @router.post("/sandboxes/{sandbox_id}/fork", status_code=201, responses=failures(429))
    async def fork(
        sandbox_id: SandboxId, body: Annotated[ForkSandbox, Depends(json_body(ForkSandbox))]
    ) -> list[ForkResult]:
        if not 1 <= body.count <= settings.max_fork:
            limit = f"must be between 1 and {settings.max_fork}, the limit of this server"
            raise InvalidRequest(f"count: {limit}, not {body.count}")
        timeout = None if body.timeout is None else checked(body.timeout, settings.default_timeout)
        results = await sandboxes.fork(sandbox_id, body.count, timeout)
        return [ForkResult.of(result, settings.public_domain) for result in results]

    return router


def changing_router(sandboxes: Sandboxes, settings: Settings) -> APIRouter:
    """Routes that look at or change one sandbox."""
    router = APIRouter()

    @router.get("/sandboxes/{sandbox_id}")
    async def info(sandbox_id: SandboxId) -> SandboxDetail:
        return SandboxDetail.describe(await sandboxes.get(sandbox_id), settings.public_domain)

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
        await sandboxes.pause(
            sandbox_id,
            memory=body.memory is not False,
            require_healthy_guest=bool(body.require_healthy_guest),
        )

    @router.post("/sandboxes/{sandbox_id}/snapshots", status_code=201)
    async def snapshot(
        sandbox_id: SandboxId, body: Annotated[NewSnapshot, Depends(json_body(NewSnapshot))]
    ) -> SnapshotInfo:
        memory = body.memory is not False
        return SnapshotInfo.of(await sandboxes.snapshot(sandbox_id, body.name, memory=memory))

    @router.post("/sandboxes/{sandbox_id}/rollback", status_code=204)
    async def rollback(
        sandbox_id: SandboxId, body: Annotated[RollbackSandbox, Depends(json_body(RollbackSandbox))]
    ) -> None:
        await sandboxes.roll_back(sandbox_id, body.snapshot_id)

    @router.put("/sandboxes/{sandbox_id}/network", status_code=204)
    async def network(
        sandbox_id: SandboxId, body: Annotated[NetworkUpdate, Depends(json_body(NetworkUpdate))]
    ) -> None:
        await sandboxes.get(sandbox_id)
        unsupported.check_network_update(body)

    return router
