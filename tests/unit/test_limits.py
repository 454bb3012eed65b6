"""A server may have as many connections as the administrator allows."""

from __future__ import annotations

import subprocess
import sys


def test_the_file_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource as r; from aenv.limits import raise_file_limit;"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 1024)); raise_file_limit(); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1024, 1024)"
