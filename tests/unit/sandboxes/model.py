"""What must be true of sandboxes and snapshots, whatever was done to them: small enough to be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass
class Content:
    """Values that clients wrote: into memory, into files, and those of them that are on the disk already."""

    memory: dict[str, int] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Content:
        """Of its own."""
        return Content(dict(self.memory), dict(self.unwritten), dict(self.disk))

    def sync(self) -> None:
        """Files go to the disk."""
        self.disk |= self.unwritten
        self.unwritten = {}

    def rebooted(self) -> Content:
        """What is there after a boot."""
        return Content(disk=dict(self.disk))


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

    def resume(self, *, memory: bool) -> None:
        """It runs again, booted if there is no memory or none is wanted."""
        if self.life is Life.DISK_ONLY or not memory:
            self.content = self.content.rebooted()
        self.life = Life.RUNNING


@dataclass
class Snap:
    """A snapshot: what is in it, and of which sandbox it is."""

    content: Content
    source: str


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
