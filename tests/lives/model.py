"""What must be true of sandboxes and snapshots, whatever was done to them: small enough to be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Seen:
    """What a guest, or a capture of one, has in it."""

    memory: Mapping[str, int]
    files: Mapping[str, int]
    disk: Mapping[str, int] | None = None
    """What of the files is on the disk already, where that can be told."""
    counted: int = 0
    """How far a counter in the memory of a process is."""


@dataclass
class Content:
    """Values that clients wrote: into memory, into files, and those of them that are on the disk already."""

    memory: dict[str, int] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)
    counted: int = 0
    """How far the counter was when it was looked at last."""

    def copy(self) -> Content:
        """Of its own."""
        return Content(dict(self.memory), dict(self.unwritten), dict(self.disk), self.counted)

    def sync(self) -> None:
        """Files go to the disk."""
        self.disk |= self.unwritten
        self.unwritten = {}

    def rebooted(self) -> Content:
        """What is there after a boot."""
        return Content(disk=dict(self.disk))

    def check(self, seen: Seen, where: str) -> None:
        """Raise AssertionError unless all of this, and nothing else, is what was seen."""
        files = self.disk | self.unwritten
        assert seen.memory == self.memory, f"{where}: {seen.memory} in memory instead of {self.memory}"
        assert seen.files == files, f"{where}: {seen.files} in files instead of {files}"
        assert seen.disk in (None, self.disk), f"{where}: {seen.disk} on the disk instead of {self.disk}"
        assert seen.counted >= self.counted, f"{where}: counted {seen.counted} after {self.counted}"
        self.counted = seen.counted

    def keep_what_was_written(self, unwritten: Mapping[str, int], seen: Seen) -> None:
        """After a boot: a guest may have written a file, or an older state of it, by itself before."""
        for key, value in unwritten.items():
            if self.disk.get(key, 0) < seen.files.get(key, 0) <= value:
                self.disk[key] = seen.files[key]


class Life(StrEnum):
    """The states in which a client can leave a sandbox."""

    RUNNING = "running"
    PAUSED = "paused"
    DISK_ONLY = "paused without memory"


@dataclass
class Box:
    """A sandbox."""

    content: Content
    auto_pause: bool
    life: Life = Life.RUNNING

    def captured(self, *, memory: bool) -> Content:
        """What a capture of it has. Without memory the guest has written its files before, capture or not."""
        if memory:
            return self.content.copy()
        self.content.sync()
        return self.content.rebooted()

    def pause(self, *, memory: bool) -> None:
        """It is paused."""
        self.content = self.captured(memory=memory)
        self.life = Life.PAUSED if memory else Life.DISK_ONLY

    def resume(self, *, memory: bool) -> bool:
        """It runs again, booted if there is no memory or none is wanted; whether it was booted."""
        booted = self.life is Life.DISK_ONLY or not memory
        if booted:
            self.content = self.content.rebooted()
        self.life = Life.RUNNING
        return booted


@dataclass
class Snap:
    """A snapshot: what is in it, of which sandbox it is, and whether it has the memory."""

    content: Content
    source: str
    memory: bool


@dataclass
class Model:
    """Everything that exists, by id and in the order in which it came."""

    boxes: dict[str, Box] = field(default_factory=dict)
    snaps: dict[str, Snap] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def lose(self, sandbox_id: str) -> None:
        """Its VM is gone."""
        del self.boxes[sandbox_id]
        self.lost.add(sandbox_id)

    def in_life(self, *lives: Life) -> list[str]:
        """Those that are in one of these states."""
        return [sandbox_id for sandbox_id, box in self.boxes.items() if box.life in lives]

    def own_snaps(self) -> list[tuple[str, str]]:
        """Each running sandbox with each of its snapshots."""
        running = set(self.in_life(Life.RUNNING))
        return [(snap.source, name) for name, snap in self.snaps.items() if snap.source in running]
