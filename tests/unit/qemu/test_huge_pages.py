"""VMMs have no huge pages, this process keeps its own."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aenv.runtimes.qemu.huge_pages import no_huge_pages


def _started() -> str:
    with no_huge_pages():
        child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    try:
        return _setting(str(child.pid))
    finally:
        child.kill()
        child.wait()


def _setting(pid: str) -> str:
    return Path(f"/proc/{pid}/status").read_text().partition("THP_enabled:")[2].split()[0]


def test_what_is_started_has_none_and_this_process_keeps_them() -> None:
    before = _setting("self")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: _started(), range(8))) == ["0"] * 8
    assert _setting("self") == before == "1"
