"""The tests of the areas once more, with Python's SDK 2.45.1 in place of the newest, both halves of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.server import ROOT, STATE

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(1500)]

SDK = STATE / "sdks" / "python-2.45.1"

AREAS = [
    "branching",
    "commands",
    "files",
    "filesystem_pause",
    "git",
    "list",
    "metrics_logs",
    "pty",
    "secure",
    "signed_urls",
    "timeouts",
    "watch",
]

ABSENT = [
    "commands.py::test_stdin",  # stream_input
    "pty.py::test_keys_and_raw_bytes",  # stream_input
    "files.py::test_a_stream_is_sent_in_chunks",  # iterables as contents
    "files.py::test_an_upload_that_breaks_off_leaves_no_file",  # iterables as contents
    "files.py::test_symlinks",  # it shows the type of what a link points to
    "filesystem_pause.py::test_a_pause_of_the_file_system_ends_in_a_boot",  # mode
    "filesystem_pause.py::test_a_whole_pause_can_be_rebooted",  # on_resume
    "filesystem_pause.py::test_a_snapshot_of_the_file_system",  # mode
    "filesystem_pause.py::test_a_deadline_that_keeps_the_file_system",  # mode
]
"""What the older SDK can't do, or says in another way."""


def test_every_area() -> None:
    packages = next((SDK / "lib").glob("python3*")) / "site-packages"
    files = [f"tests/sdk/test_{area}.py" for area in AREAS]
    absent = [f"--deselect=tests/sdk/test_{name}" for name in ABSENT]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, *absent],
        env={**os.environ, "PYTHONPATH": str(packages), "AENV_TEST_HOME": "older-sdk"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
