"""Steps show their name and how they ended."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from aenv.images.progress import Progress, QuietProgress, RichProgress


def work(progress: Progress) -> None:
    with progress.step("outer [step]") as line:
        line("detail")
        with progress.step("inner") as inner_line:
            inner_line("more detail")


def test_without_a_terminal_each_step_leaves_plain_lines() -> None:
    out = io.StringIO()
    work(RichProgress(Console(file=out, width=20)))
    assert out.getvalue().splitlines() == [
        "outer [step] …",
        "inner …",
        "inner … done in 0.0 s",
        "outer [step] … done in 0.0 s",
    ]


def test_on_a_terminal_the_end_of_each_step_stays() -> None:
    out = io.StringIO()
    work(RichProgress(Console(file=out, force_terminal=True, width=100)))
    assert "inner … done in" in out.getvalue()
    assert "outer [step] … done in" in out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_failed_step_is_told_and_its_error_goes_on(*, terminal: bool) -> None:
    out = io.StringIO()
    progress = RichProgress(Console(file=out, force_terminal=terminal, width=100))
    with pytest.raises(ValueError, match="boom"), progress.step("work"):
        raise ValueError("boom")
    assert "work … failed after" in out.getvalue()
    assert "done" not in out.getvalue()


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    work(QuietProgress())
    assert capfd.readouterr() == ("", "")
