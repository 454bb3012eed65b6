"""Descriptions of a sandbox's disk for QEMU's block layer (QEMU `qapi/block-core.json`, BlockdevOptions).

The guest's disk is the throttle node `ROOT`, which stays while what is below it is exchanged. Flushes of
the guest don't reach the host's disk (`no-flush`): a capture is made durable by whoever records it, and a
live disk needn't survive the host. Locks are off because sealed files are open in many VMs at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Node = dict[str, object]

ROOT: Final = "root"
THROTTLE_GROUP: Final = "limits"
_PLACEHOLDER: Final = "placeholder"


def root_over(below: str) -> Node:
    """The guest's disk on top of the node named `below`."""
    return {"driver": "throttle", "node-name": ROOT, "throttle-group": THROTTLE_GROUP, "file": below}


def placeholder(size: int) -> Node:
    """A disk of `size` bytes that reads as zeros, for a VM whose disk isn't known yet."""
    return {"driver": "null-co", "node-name": _PLACEHOLDER, "size": size, "read-zeroes": True}


def chain(name: str, overlay: Path, sealed: Sequence[Path], base: Path) -> Node:
    """The node `name`: the writable `overlay` over the `sealed` ones, oldest first, over the raw `base`."""
    return {**fresh_overlay(name, overlay), "backing": sealed_chain(sealed, base)}


def sealed_chain(sealed: Sequence[Path], base: Path) -> Node:
    """The `sealed` overlays, oldest first, over the raw `base`; the node has no name yet."""
    below: Node = {"driver": "raw", "read-only": True, "file": _file(base, read_only=True)}
    for path in sealed:
        below = sealed_overlay(path, below)
    return below


def sealed_overlay(path: Path, below: Node | str) -> Node:
    """A sealed overlay over a node, or over one that exists and is given by its name; it has no name yet."""
    return {
        "driver": "qcow2",
        "read-only": True,
        "file": _file(path, read_only=True),
        "backing": below,
        "cache": {"no-flush": True},
    }


def fresh_overlay(name: str, overlay: Path) -> Node:
    """The node `name`: an overlay with nothing below yet, as `blockdev-snapshot` wants it."""
    return {
        "driver": "qcow2",
        "node-name": name,
        "file": _file(overlay, read_only=False),
        "backing": None,
        "cache": {"no-flush": True},
        "discard": "unmap",
    }


def read_chain(stats: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> dict[str, Path]:
    """The disk's nodes below `ROOT` as QEMU has them, each with its file; the topmost first.

    From the answers of `query-blockstats`, which knows what is below what, and of `query-named-block-nodes`,
    which knows files. Raises LookupError if there is no such disk.
    """
    files = {str(node["node-name"]): Path(str(node["file"])) for node in nodes}
    node = next(each for each in stats if each.get("node-name") == ROOT)["parent"]
    chain: dict[str, Path] = {}
    while node is not None:
        chain[str(node["node-name"])] = files[str(node["parent"]["node-name"])]
        node = node.get("backing")
    return chain


def _file(path: Path, *, read_only: bool) -> Node:
    return {
        "driver": "file",
        "filename": str(path),
        "locking": "off",
        "read-only": read_only,
        "cache": {"no-flush": True},
        "discard": "unmap",
    }
