"""What holds for every test."""

from __future__ import annotations

import signal

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and what tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class TwoHalves(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """With several workers (`-n 2`) files stay together, and one worker has all that starts VMs.

    Two cores run a few VMs well and many badly, and those tests share a server that takes long to start.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "machines" if file.startswith(("tests/chaos/", "tests/sdk/", "tests/vm/")) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoHalves:
    """The scheduler of a run with several workers."""
    return TwoHalves(config, log)
