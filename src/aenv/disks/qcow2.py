"""Empty qcow2 images, written directly: `qemu-img create` takes 5 to 55 ms, this far below one.

Source of the format: QEMU `docs/interop/qcow2.txt`, version 3.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

MAGIC: Final = 0x514649FB  # "QFI\xfb"
_CLUSTER_BITS: Final = 16
CLUSTER: Final = 1 << _CLUSTER_BITS
L2_ENTRIES: Final = CLUSTER // 8
_REFCOUNT_ORDER: Final = 4  # 16-bit reference counts
HEADER: Final = struct.Struct(">IIQIIQIIQQIIQQQQII")
_REFCOUNT_TABLE: Final = 1
_REFCOUNT_BLOCK: Final = 2
_L1_TABLE: Final = 3


def create_overlay(path: Path, virtual_size: int) -> None:
    """Make an empty qcow2 image at `path` that names no backing file: whoever opens it says what is below.

    `virtual_size` is in bytes. Clusters are 64 KiB: header, reference-count table and block, L1 table.
    Raises FileExistsError or another OSError.
    """
    entries = -(-virtual_size // (L2_ENTRIES * CLUSTER))
    l1_clusters = max(1, -(-entries * 8 // CLUSTER))
    clusters = _L1_TABLE + l1_clusters
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, clusters * CLUSTER)
        os.pwrite(descriptor, header(virtual_size, entries, _L1_TABLE), 0)
        os.pwrite(descriptor, struct.pack(">Q", _REFCOUNT_BLOCK * CLUSTER), _REFCOUNT_TABLE * CLUSTER)
        os.pwrite(descriptor, struct.pack(">H", 1) * clusters, _REFCOUNT_BLOCK * CLUSTER)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def header(virtual_size: int, l1_entries: int, l1_cluster: int, *, table_clusters: int = 1) -> bytes:
    """The header of an image whose L1 table is at `l1_cluster` and whose counts' table follows the header."""
    return HEADER.pack(
        MAGIC,
        3,
        0,  # no backing file name
        0,
        _CLUSTER_BITS,
        virtual_size,
        0,  # not encrypted
        l1_entries,
        l1_cluster * CLUSTER,
        _REFCOUNT_TABLE * CLUSTER,
        table_clusters,
        0,  # no internal snapshots
        0,
        0,  # incompatible features
        0,  # compatible features
        0,  # autoclear features
        _REFCOUNT_ORDER,
        HEADER.size,
    )
