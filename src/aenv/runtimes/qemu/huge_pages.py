"""VMMs without transparent huge pages.

QEMU advises the kernel to use them for its own small memories too: a guest's ACPI tables of 128 KiB then take
2 MiB of the host, and so does the first instruction that is translated. The guest's memory never has them: it
is a private mapping of a file.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PR_SET_THP_DISABLE: Final = 41  # linux/prctl.h; prctl(2)

_libc = ctypes.CDLL(None)
_setting = threading.Lock()


@contextmanager
def no_huge_pages() -> Iterator[None]:
    """Processes that are started in the block, by this thread, have none for their whole life.

    The setting is inherited, so this process has none meanwhile; one thread at a time is in such a block. A
    kernel that knows no huge pages, and so refuses to turn them off, is left alone.
    """
    with _setting:
        _disable(1)
        try:
            yield
        finally:
            _disable(0)


def _disable(yes: int) -> None:
    _libc.prctl(_PR_SET_THP_DISABLE, yes, 0, 0, 0)
