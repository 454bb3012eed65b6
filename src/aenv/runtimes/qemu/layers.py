"""What the layers of a QEMU capture are."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aenv.errors import RuntimeFailure
from aenv.runtimes.base import Capture, Layer

MEMORY_BASE: Final = "memory-base"
MEMORY_DELTA: Final = "memory-delta"
DEVICE_STATE: Final = "device-state"
DISK_BASE: Final = "disk-base"
DISK_OVERLAY: Final = "disk-overlay"


@dataclass(frozen=True)
class DiskLayers:
    """The disk of a capture: what a boot needs of it."""

    base: Path
    overlays: tuple[Path, ...]
    """Sealed overlays, oldest first."""

    @classmethod
    def of(cls, capture: Capture) -> DiskLayers:
        """Pick a capture's disk. Raises RuntimeFailure if it has none."""
        bases = [layer.path for layer in capture.layers if layer.role == DISK_BASE]
        if not bases:
            raise RuntimeFailure(f"the capture has no layer {DISK_BASE}")
        return cls(bases[0], tuple(layer.path for layer in capture.layers if layer.role == DISK_OVERLAY))

    def layers(self) -> tuple[Layer, ...]:
        """As layers of a capture, lowest first."""
        return (Layer(DISK_BASE, self.base), *(Layer(DISK_OVERLAY, path) for path in self.overlays))


@dataclass(frozen=True)
class QemuLayers:
    """The files of a whole capture by what they are. `memory_delta` is missing right after a boot."""

    memory_base: Path
    memory_delta: Path | None
    device_state: Path
    disk: DiskLayers

    @classmethod
    def of(cls, capture: Capture) -> QemuLayers:
        """Sort a capture's layers. Raises RuntimeFailure if one is missing or unknown."""
        if not capture.memory:
            raise RuntimeFailure("the capture holds a disk only: it can be booted, not restored")
        files: dict[str, list[Path]] = {}
        for layer in capture.layers:
            files.setdefault(layer.role, []).append(layer.path)
        try:
            result = cls(
                memory_base=files.pop(MEMORY_BASE)[0],
                memory_delta=files.pop(MEMORY_DELTA, [None])[0],
                device_state=files.pop(DEVICE_STATE)[0],
                disk=DiskLayers(files.pop(DISK_BASE)[0], tuple(files.pop(DISK_OVERLAY, ()))),
            )
        except KeyError as error:
            raise RuntimeFailure(f"the capture has no layer {error.args[0]}") from error
        if files:
            raise RuntimeFailure(f"the capture has layers unknown here: {', '.join(files)}")
        return result

    def layers(self) -> tuple[Layer, ...]:
        """As layers of a capture, in the order in which they are needed."""
        delta = [] if self.memory_delta is None else [Layer(MEMORY_DELTA, self.memory_delta)]
        return (
            Layer(MEMORY_BASE, self.memory_base),
            *delta,
            Layer(DEVICE_STATE, self.device_state),
            *self.disk.layers(),
        )

    def check_files(self) -> None:
        """Raise RuntimeFailure, naming it, if a file is missing."""
        for layer in self.layers():
            if not layer.path.is_file():
                raise RuntimeFailure(f"the layer {layer.role} is missing: {layer.path}")


def publish(file: Path, target: Path) -> None:
    """Let the finished `file` appear at `target` too: a hard link, or a copy on another file system.

    Blocking. Raises OSError.
    """
    try:
        target.hardlink_to(file)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        shutil.copyfile(file, target)
