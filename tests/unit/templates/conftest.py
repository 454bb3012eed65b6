"""A node on the fake runtime, and builds on it."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aenv.node import Node
from aenv.runtimes.fake import FakeRuntime
from aenv.sandboxes.models import CreateSandbox, Sandbox, Template
from aenv.templates.jobs import Job, Size
from aenv.templates.plan import FromTemplate, Plan
from aenv.templates.steps import parse
from tests.unit.sandboxes.conftest import eventually, fake_settings

HASH = "0" * 64


@dataclass
class Builds:
    """A started node."""

    node: Node

    @property
    def runtime(self) -> FakeRuntime:
        assert isinstance(self.node.runtime, FakeRuntime)
        return self.node.runtime

    async def begin(
        self,
        *steps: Sequence[str],
        name: str = "mine",
        parent: str = "base",
        tags: Sequence[str] = (),
        size: Size | None = None,
        forced: Sequence[int] = (),
        files_hash: str | None = None,
        **plan: Any,
    ) -> Job:
        """Start a build; each step is its kind and its arguments, `forced` are the numbers of some."""
        job, _ = await self.node.builder.request(name, tags, size or Size())
        parsed = tuple(
            parse(kind, args, files_hash if kind == "COPY" else None, force=number in forced)
            for number, (kind, *args) in enumerate(steps, 1)
        )
        await self.node.builder.start(job.template_id, job.id, Plan(FromTemplate(parent), parsed, **plan))
        return job

    async def end(self, job: Job) -> Job:
        """The build once it is over."""

        async def over() -> bool:
            return (await self.node.builder.find(job.template_id, job.id)).is_over

        await eventually(over, 30)
        return await self.node.builder.find(job.template_id, job.id)

    async def build(self, *steps: Sequence[str], **options: Any) -> Template:
        """A template that could be built."""
        job = await self.end(await self.begin(*steps, **options))
        assert job.status == "ready", job.reason
        tag = job.tags[0]
        template = await self.node.templates.find(f"{job.template_id}:{tag}")
        assert template.build.id == job.id
        return template

    async def failed(self, *steps: Sequence[str], **options: Any) -> Job:
        """A build that came to nothing."""
        job = await self.end(await self.begin(*steps, **options))
        assert job.status == "error"
        return job

    async def log(self, job: Job) -> list[str]:
        return [entry.message for entry in await self.node.builder.log(job.id)]

    async def create(self, template: str, **changes: Any) -> Sandbox:
        request = {"template": template, "timeout": 60.0, "auto_pause": True, **changes}
        return await self.node.sandboxes.create(CreateSandbox(**request))

    async def disk(self, template: Template) -> dict[str, Any]:
        """What is on the disk of a sandbox that is started from the template."""
        sandbox = await self.create(f"{template.id}:{template.tag}")
        assert sandbox.instance_id is not None
        disk = dict(self.runtime.instances[sandbox.instance_id].guest.disk)
        await self.node.sandboxes.kill(sandbox.id)
        return disk

    async def upload(self, **files: str) -> None:
        """An archive with files, whose names have `_` for a dot."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in files.items():
                info = tarfile.TarInfo(name.replace("_", "."))
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))

        async def content() -> AsyncIterator[bytes]:
            yield out.getvalue()

        await self.node.uploads.put(HASH, content())

    def captures(self) -> list[Path]:
        """The folders of all captures."""
        return list(self.node.captures._folder.iterdir())

    def machines(self) -> int:
        """How many VMs there are."""
        return len(self.runtime.instances)


@pytest.fixture
async def builds(tmp_path: Path) -> AsyncIterator[Builds]:
    """A node without pools; checked for leaks at its end."""
    settings = fake_settings(tmp_path / "home", hot_vms=0, bare_vms=0, stopped_vms=0)
    node = Node(settings)
    await node.start()
    builds = Builds(node)
    yield builds
    await node.stop()
    assert not builds.runtime.instances
    assert not list(settings.workspace_dir.iterdir())
    assert len(asyncio.all_tasks()) == 1
