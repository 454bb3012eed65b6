"""The frequency of this host's time stamp counter (TSC).

An emulated guest reads the host's counter and must be told its frequency. The kernel knows it but shows it
only in its log, so it is measured.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from typing import Final

from aenv.errors import HostNotReady

_READ_TSC: Final = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
_SAMPLES: Final = 50
_MEASURE: Final = 0.2  # seconds; with samples good to ~100 ns the result is good to ~1 ppm


def measure_tsc_khz() -> int:
    """The TSC's frequency in kHz, good to a few parts in a million. Blocks for a fifth of a second."""
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        raise HostNotReady(f"the host forbids executable memory, needed to read its TSC: {error}") from error
    code.write(_READ_TSC)
    anchor = ctypes.c_char.from_buffer(code)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(anchor))
    first_time, first_count = _sample(read)
    time.sleep(_MEASURE)
    last_time, last_count = _sample(read)
    return round((last_count - first_count) * 1_000_000 / (last_time - first_time))


def _sample(read: Callable[[], int]) -> tuple[float, int]:
    """A time in nanoseconds and the count at that time: the pair of many that took the least to read."""
    best: tuple[int, float, int] | None = None
    for _ in range(_SAMPLES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        count = read()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) / 2, count)
    assert best is not None  # noqa: S101 - there are samples
    return best[1], best[2]
