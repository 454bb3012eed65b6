"""Bodies of the routes that build templates, with the E2B contract's names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from aenv.api.models import Omitted, RequestBody, ResponseBody, moment
from aenv.errors import InvalidRequest
from aenv.guest.reports import Level
from aenv.images.models import Aws, Credentials, Gcp, UserPassword
from aenv.templates.build_log import BuildLogEntry
from aenv.templates.jobs import Job, Reason, Size, Status
from aenv.templates.layers import LayerProgress
from aenv.templates.names import TEAM
from aenv.templates.plan import FromArchive, FromImage, FromTemplate, Origin, Plan
from aenv.templates.steps import MOST_STEPS, checked_hash, parse

LAST_ENTRIES = 10
"""Log entries that come with the reason of a failure."""


class NewTemplate(RequestBody):
    """Body of `POST /v3/templates`. `alias` is the older name of `name`."""

    name: str | None = Field(None, min_length=1, max_length=512)
    alias: str | None = Field(None, min_length=1, max_length=512)
    tags: Annotated[list[str], Field(max_length=100)] | None = None
    team_id: str | None = Field(None, alias="teamID")
    cpu_count: int | None = Field(None, ge=1, le=32)
    memory_mb: int | None = Field(None, alias="memoryMB", ge=128, le=65536)
    min_free_disk_mb: int | None = Field(None, ge=0, le=1 << 20)
    disk_size_mb: int | None = Field(None, alias="diskSizeMB", ge=64, le=1 << 20)
    """Not E2B's."""

    @property
    def wanted_name(self) -> str:
        """The name, by whichever field. Raises InvalidRequest if there is none."""
        name = self.name or self.alias
        if name is None:
            raise InvalidRequest("name: a template needs a name")
        return name

    @property
    def size(self) -> Size:
        """What was asked for."""
        return Size(self.cpu_count, self.memory_mb, self.min_free_disk_mb or 0, self.disk_size_mb)


class RequestedTemplate(ResponseBody):
    """The answer to it."""

    template_id: str = Field(alias="templateID")
    build_id: str = Field(alias="buildID")
    public: bool = False
    names: list[str]
    tags: list[str]
    aliases: list[str]

    @classmethod
    def of(cls, job: Job, alias: str) -> RequestedTemplate:
        """The answer for a new build."""
        return cls(
            template_id=job.template_id,
            build_id=job.id,
            names=[f"{TEAM}/{alias}"],
            tags=list(job.tags),
            aliases=[alias],
        )


class FileUpload(ResponseBody):
    """Whether an archive is there, and where to put it."""

    present: bool
    url: str


class RegistryLogin(RequestBody):
    """A user of a registry."""

    type: Literal["registry"]
    username: str
    password: str

    def credentials(self) -> Credentials:
        """Who pulls."""
        return UserPassword(self.username, self.password)


class AwsLogin(RequestBody):
    """An account of AWS."""

    type: Literal["aws"]
    aws_access_key_id: str
    aws_secret_access_key: str
    aws_region: str

    def credentials(self) -> Credentials:
        """Who pulls."""
        return Aws(self.aws_access_key_id, self.aws_secret_access_key, self.aws_region)


class GcpLogin(RequestBody):
    """A service account of Google Cloud."""

    type: Literal["gcp"]
    service_account_json: str

    def credentials(self) -> Credentials:
        """Who pulls."""
        return Gcp(self.service_account_json)


class ImageArchive(RequestBody):
    """An image in an archive that was uploaded, as files for COPY are. Not E2B's."""

    files_hash: str
    tag: str | None = Field(None, min_length=1, max_length=512)
    root: bool = False


class BuildStep(RequestBody):
    """One instruction. `force_upload` is the client's own business."""

    type: str
    args: list[str] | None = None
    files_hash: str | None = None
    force: bool | None = None
    force_upload: bool | None = None
    shell: Annotated[list[str], Field(max_length=20)] | None = None
    """Of a RUN. Not E2B's."""


class StartBuild(RequestBody):
    """Body of `POST /v2/templates/{id}/builds/{build}`."""

    from_image: str | None = Field(None, min_length=1, max_length=512)
    from_template: str | None = Field(None, min_length=1, max_length=512)
    from_archive: ImageArchive | None = None
    docker_defaults: bool | None = None
    """Where an image says nothing, the user is root and the working directory `/`. Not E2B's."""
    from_image_registry: (
        Annotated[RegistryLogin | AwsLogin | GcpLogin, Field(discriminator="type")] | None
    ) = None
    force: bool | None = None
    steps: list[BuildStep] | None = None
    start_cmd: str | None = None
    ready_cmd: str | None = None

    def plan(self) -> Plan:
        """What is to be done. Raises InvalidRequest."""
        if len(self.steps or []) > MOST_STEPS:
            raise InvalidRequest(f"steps: there may be at most {MOST_STEPS}")
        for name, command in (("startCmd", self.start_cmd), ("readyCmd", self.ready_cmd)):
            if "\0" in (command or ""):
                raise InvalidRequest(f"{name}: NUL characters aren't allowed")
        parsed = [
            parse(
                each.type, each.args or [], each.files_hash, force=each.force or False, shell=each.shell or ()
            )
            for each in self.steps or []
        ]
        return Plan(
            self._origin(),
            tuple(parsed),
            self.start_cmd or None,
            self.ready_cmd or None,
            docker_defaults=self.docker_defaults or False,
            force=self.force or False,
        )

    def _origin(self) -> Origin:
        login = self.from_image_registry
        match self.from_template, self.from_image, self.from_archive:
            case str(name), None, None if login is None:
                return FromTemplate(name)
            case None, str(reference), None:
                return FromImage(reference, None if login is None else login.credentials())
            case None, None, ImageArchive() as archive if login is None:
                return FromArchive(checked_hash(archive.files_hash), archive.tag, archive.root)
        raise InvalidRequest(
            "one of fromTemplate, fromImage and fromArchive is needed,"
            " and fromImageRegistry only with fromImage"
        )


class LogEntry(ResponseBody):
    """One line of a build's log."""

    timestamp: datetime
    level: Level
    message: str
    step: Omitted[str] = None

    @classmethod
    def of(cls, entry: BuildLogEntry) -> LogEntry:
        """The answer for one line."""
        return cls(timestamp=moment(entry.time), level=entry.level, message=entry.message, step=entry.step)


class FailureReason(ResponseBody):
    """Why a build failed, where, and the last of its log."""

    message: str
    step: Omitted[str] = None
    log_entries: list[LogEntry]

    @classmethod
    def of(cls, reason: Reason, entries: Iterable[BuildLogEntry]) -> FailureReason:
        """The answer for a failure; `entries` is the whole log."""
        last = [entry for entry in entries if reason.step is None or entry.step == reason.step]
        shown = [LogEntry.of(entry) for entry in last[-LAST_ENTRIES:]]
        return cls(message=reason.message, step=reason.step, log_entries=shown)


class BuildStatus(ResponseBody):
    """E2B's `TemplateBuildInfo`."""

    template_id: str = Field(alias="templateID")
    build_id: str = Field(alias="buildID")
    status: Status = "ready"
    logs: Sequence[str] = ()
    log_entries: Sequence[LogEntry] = ()
    reason: Omitted[FailureReason] = None


class BuildLogs(ResponseBody):
    """The log of a build."""

    logs: Sequence[LogEntry] = ()


class BuildSummary(ResponseBody):
    """One build, however it went. Not E2B's."""

    build_id: str = Field(alias="buildID")
    status: Status
    tags: Sequence[str]
    created_at: datetime
    updated_at: datetime
    reason: Omitted[str] = None

    @classmethod
    def of(cls, job: Job) -> BuildSummary:
        """The answer that describes `job`."""
        return cls(
            build_id=job.id,
            status=job.status,
            tags=job.tags,
            created_at=moment(job.created_at),
            updated_at=moment(job.updated_at),
            reason=None if job.reason is None else job.reason.message,
        )


class FetchedLayer(ResponseBody):
    """How far a layer of the image is that a build begins with. Not E2B's."""

    digest: str
    done: int
    total: int | None

    @classmethod
    def of(cls, layer: LayerProgress) -> FetchedLayer:
        """The answer that describes `layer`."""
        return cls(digest=layer.digest, done=layer.done, total=layer.total)
