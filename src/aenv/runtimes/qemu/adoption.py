"""Going on with a VM that an earlier server started.

What QEMU knows is asked of it, so that it can't be out of date, wherever the earlier server was interrupted:
whether the guest runs, what its disk is made of, which file its memory maps. The rest, its place and what its
captures need, is in a file that is written before the VM can belong to a sandbox.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from aenv.durable import write_whole
from aenv.errors import RuntimeFailure
from aenv.network.base import Slot
from aenv.runtimes.base import Place, Resources, RuntimeIdentity
from aenv.runtimes.qemu import leftovers
from aenv.runtimes.qemu.compaction import Workshop
from aenv.runtimes.qemu.disk import InstanceDisk
from aenv.runtimes.qemu.instance import QemuInstance
from aenv.runtimes.qemu.process import VmProcess

DESCRIPTION: Final = "instance.json"
_MEMORY: Final = "/objects/ram"


@dataclass(frozen=True)
class Description:
    """What has to be known of a VM and can't be asked of its QEMU. `identity` is that of its captures."""

    slot: Slot
    identity: RuntimeIdentity
    resources: Resources


_FILE: Final = TypeAdapter(Description)


def describe(place: Place, identity: RuntimeIdentity, resources: Resources) -> None:
    """Write the description of the VM at `place`; it appears whole or not at all. Blocking; raises OSError.

    It needn't survive a power cut: the VM doesn't either.
    """
    content = _FILE.dump_json(Description(place.slot, identity, resources))
    write_whole(place.folder / DESCRIPTION, content, survive=False)


def described(folder: Path) -> Description:
    """The description of the VM in `folder`. Blocking. Raises RuntimeFailure if there is none."""
    try:
        return _FILE.validate_json((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError) as error:
        raise RuntimeFailure(f"its VM isn't known any more: {folder / DESCRIPTION} can't be read") from error


def find(folder: Path) -> tuple[Place, RuntimeIdentity]:
    """The place of the living VM in `folder`, and the identity of its captures.

    Blocking. Raises RuntimeFailure with what became of it.
    """
    _, pidfd = leftovers.open_process(folder)
    os.close(pidfd)
    description = described(folder)
    return Place(description.slot, folder), description.identity


async def adopt(
    place: Place, check: Callable[[RuntimeIdentity], None], workers: Executor, workshop: Workshop
) -> QemuInstance:
    """The VM at `place`, frozen or not, as it was left. On any failure it is ended.

    `check` raises RuntimeFailure for the identity of captures that couldn't be restored any more.
    """
    process = await VmProcess.adopt(place.folder)
    try:
        description = await asyncio.to_thread(described, place.folder)
        try:
            check(description.identity)
        except RuntimeFailure as error:
            raise RuntimeFailure(f"its VMM is not of this server's version and settings: {error}") from error
        disk = await InstanceDisk.adopt(process, place.folder, description.resources.disk_mib << 20)
        status: Any = await process.execute("query-status")
        memory = await process.execute("qom-get", {"path": _MEMORY, "property": "mem-path"})
        shared = await process.execute("qom-get", {"path": _MEMORY, "property": "share"})
        return QemuInstance(
            process,
            identity=description.identity,
            place=place,
            resources=description.resources,
            disk=disk,
            memory=Path(str(memory)),
            booted=bool(shared),
            frozen=not status["running"],
            workers=workers,
            workshop=workshop,
        )
    except BaseException as error:
        await process.stop()
        if isinstance(error, OSError | LookupError | TypeError | ValueError):
            raise RuntimeFailure(f"its VM can't be adopted: {error!r}") from error
        raise
