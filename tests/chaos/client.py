"""A client that works on sandboxes of its own, and knows at any time what must be true of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import aiohttp

from aenv.cli.api import ApiClient
from aenv.cli.errors import ApiError
from aenv.errors import AenvError
from aenv.guest import ENVD_PORT
from aenv.guest.client import EnvdClient
from tests.chaos.victim import Victim

PATIENCE = 120.0
"""Seconds until something that is in doubt must have become clear."""

MOST = 3
"""Sandboxes and snapshots of one client."""

DISK = "/home/user"

FOLDERS = (DISK, "/dev/shm")
"""On the disk, and in memory."""

TIMEOUT = 3600
"""Seconds to a sandbox's deadline: none comes."""


class Doubt(Exception):
    """The server or a VM went away while it was asked: what was asked may have happened or not."""


@dataclass
class Box:
    """A sandbox or a snapshot. `files` are those whose writing was confirmed, with their digests."""

    id: str
    token: str | None
    files: dict[str, str] = field(default_factory=dict)
    paused: bool = False
    dying: bool = False
    """It may have been killed."""


class Client:
    """Does one random thing after the other."""

    def __init__(
        self, name: str, victim: Victim, api: ApiClient, session: aiohttp.ClientSession, chance: random.Random
    ) -> None:
        self.boxes: list[Box] = []
        self.snapshots: list[Box] = []
        self.done: Counter[str] = Counter()
        self._name = name
        self._victim = victim
        self._api = api
        self._session = session
        self._chance = chance
        self._written = 0
        self._works: dict[str, tuple[float, Callable[[Box], Awaitable[None]]]] = {
            "write": (6, self._write),
            "check": (3, self._check),
            "pause": (3, self._pause),
            "pause the disk": (0.5, self._pause_disk),
            "resume": (2, self._resume),
            "fork": (1, self._fork),
            "snapshot": (1, self._snapshot),
            "create": (1, lambda _: self._create()),
            "kill": (0.5, self._kill),
        }

    async def run(self, end_at: float) -> None:
        """Work until that time."""
        while time.monotonic() < end_at:
            await self._victim.answering.wait()
            if not self.boxes:
                await self._attempt("create", self._create(), None)
                continue
            box = self._chance.choice(self.boxes)
            names = list(self._works)
            name = self._chance.choices(names, [self._works[each][0] for each in names])[0]
            if len(self.boxes) > MOST:
                name = "kill"
            await self._attempt(name, self._works[name][1](box), box)

    async def check_all(self) -> None:
        """Nobody kills any more: everything is as it must be. Kills the sandboxes."""
        for box in list(self.boxes):
            await self.settle(box)
        for snapshot in self.snapshots:
            created = await self._api.create(snapshot.id, timeout=TIMEOUT, env={}, metadata={})
            self.boxes.append(Box(created.sandbox_id, created.access_token, dict(snapshot.files)))
        for box in self.boxes:
            await self._api.connect(box.id, TIMEOUT)
            await self._verify(box)
            await self._api.kill(box.id)
        for snapshot in self.snapshots:
            await self._api.delete_template(snapshot.id)

    async def _attempt(self, name: str, work: Awaitable[None], box: Box | None) -> None:
        """Do it, and find out what has happened if that isn't clear."""
        try:
            await work
            self.done[name] += 1
        except Doubt:
            self.done[f"{name} in doubt"] += 1
            if box is not None:
                await self.settle(box)

    async def settle(self, box: Box) -> None:
        """Find out what a sandbox is now: it must be there, with its files, or have a reason not to be."""
        end_at = time.monotonic() + PATIENCE
        doubt = ""
        while time.monotonic() < end_at:
            await self._victim.answering.wait()
            try:
                info = await self._api.info(box.id)
                box.paused, box.dying = info.state == "paused", False
                if not box.paused:
                    await self._verify(box)
            except ApiError as error:
                if error.status == 404:
                    self._let_go(box)
                    return
                doubt = str(error)
            except (AenvError, Doubt) as error:
                doubt = repr(error)
            else:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"sandbox {box.id} stays in doubt: {doubt}")

    def _let_go(self, box: Box) -> None:
        """A sandbox isn't there any more: somebody must have killed it, or its VMM."""
        self.boxes.remove(box)
        if box.dying:
            return
        record = self._victim.record(box.id)
        assert record is not None, f"sandbox {box.id} was forgotten"
        assert record["state"] == "lost", f"sandbox {box.id} is hidden: {record}"
        assert record["reason"]
        assert record["instance_id"] in self._victim.killed, f"sandbox {box.id} is lost: {record['reason']}"
        self.done["lost with its VMM"] += 1

    def _guest(self, box: Box) -> EnvdClient:
        routing = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": str(ENVD_PORT)}
        url = self._victim.server.url
        return EnvdClient(url, session=self._session, token=box.token, headers=routing, user="user")

    async def _verify(self, box: Box) -> None:
        """Every file whose writing was confirmed is there, whole."""
        if not box.files:
            return
        with _doubtful():
            result = await self._guest(box).processes.run(f"sha256sum {' '.join(box.files)}")
        lines = [line.split() for line in result.stdout.decode().splitlines()]
        found = {path: digest for digest, path in lines}
        wrong = [path for path, digest in box.files.items() if found.get(path) != digest]
        assert not wrong, f"sandbox {box.id} lost {wrong}: {result.stderr.decode()}"

    async def _check(self, box: Box) -> None:
        if not box.paused:
            await self._verify(box)

    async def _create(self) -> None:
        source = self._chance.choice([Box("base", None), *self.snapshots])
        try:
            with _doubtful():
                created = await self._api.create(source.id, timeout=TIMEOUT, env={}, metadata={})
        except ApiError as error:
            raise AssertionError(f"{source.id} is lost: {error}") from error
        self.boxes.append(Box(created.sandbox_id, created.access_token, dict(source.files)))

    async def _write(self, box: Box) -> None:
        if box.paused:
            await self._resume(box)
        self._written += 1
        path = f"{self._chance.choice(FOLDERS)}/{self._name}-{self._written}"
        content = self._chance.randbytes(self._chance.randrange(1, 100_000))
        with _doubtful():
            await self._guest(box).files.write(path, content)
        box.files[path] = hashlib.sha256(content).hexdigest()

    async def _pause(self, box: Box) -> None:
        if box.paused:
            return
        with _doubtful(404, 409):
            await self._api.pause(box.id)
        box.paused = True

    async def _pause_disk(self, box: Box) -> None:
        """The next resume boots. What was in memory is gone, or may be."""
        if box.paused:
            return
        box.files = {path: digest for path, digest in box.files.items() if path.startswith(DISK)}
        with _doubtful(404, 409):
            await self._api.pause(box.id, memory=False)
        box.paused = True

    async def _resume(self, box: Box) -> None:
        with _doubtful(404):
            await self._api.connect(box.id, TIMEOUT)
        box.paused = False
        await self._verify(box)

    async def _fork(self, box: Box) -> None:
        if box.paused:
            await self._resume(box)
        with _doubtful(404, 409):
            results = await self._api.fork(box.id, 2, None)
        for child in (each.sandbox for each in results if each.sandbox is not None):
            self.boxes.append(Box(child.sandbox_id, child.access_token, dict(box.files)))

    async def _snapshot(self, box: Box) -> None:
        if box.paused or len(self.snapshots) >= MOST:
            return
        with _doubtful(404, 409):
            taken = await self._api.create_snapshot(box.id, None)
        self.snapshots.append(Box(taken.snapshot_id, None, dict(box.files)))

    async def _kill(self, box: Box) -> None:
        box.dying = True
        try:
            with _doubtful():
                await self._api.kill(box.id)
        except ApiError as error:
            box.dying = False  # it was gone before
            raise Doubt from error
        self.boxes.remove(box)


@contextlib.contextmanager
def _doubtful(*statuses: int) -> Iterator[None]:
    """What a killed server or VMM, or too much work, makes of a request is a doubt, and so are `statuses`."""
    try:
        yield
    except ApiError as error:
        if error.status < 500 and error.status not in {429, *statuses}:
            raise
        raise Doubt(str(error)) from error
    except (AenvError, aiohttp.ClientError, TimeoutError) as error:
        raise Doubt(repr(error)) from error
