"""The SDK's git helpers, against a bare repository in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from e2b import CommandExitException

pytestmark = [pytest.mark.vm, pytest.mark.timeout(180)]

ORIGIN, WORK, OTHER = "/home/user/origin.git", "/home/user/work", "/home/user/other"


def test_a_day_with_git(sandbox: Any) -> None:
    git = sandbox.git
    git.configure_user("An Agent", "agent@example.com")
    assert git.get_config("user.email") == "agent@example.com"
    git.init(ORIGIN, bare=True, initial_branch="main")
    git.init(WORK, initial_branch="main")
    git.remote_add(WORK, "origin", ORIGIN)
    assert git.remote_get(WORK, "origin") == ORIGIN
    assert git.remote_get(WORK, "none") is None

    sandbox.files.write(f"{WORK}/file", "one\n")
    status = git.status(WORK)
    assert not status.is_clean
    assert [entry.name for entry in status.file_status] == ["file"]
    git.add(WORK)
    git.commit(WORK, "The first one", author_name="Somebody", author_email="somebody@example.com")
    git.push(WORK, remote="origin", branch="main")
    assert git.status(WORK).is_clean

    git.clone(ORIGIN, OTHER)
    git.create_branch(OTHER, "feature")
    branches = git.branches(OTHER)
    assert branches.current_branch == "feature"
    assert set(branches.branches) == {"feature", "main"}
    git.checkout_branch(OTHER, "main")
    git.delete_branch(OTHER, "feature")
    sandbox.files.write(f"{OTHER}/file", "two\n")
    git.add(OTHER, files=["file"])
    git.commit(OTHER, "The second one")
    git.push(OTHER)
    git.pull(WORK, remote="origin", branch="main")
    assert sandbox.files.read(f"{WORK}/file") == "two\n"

    sandbox.files.write(f"{WORK}/file", "thrown away\n")
    git.restore(WORK, ["file"])
    assert sandbox.files.read(f"{WORK}/file") == "two\n"
    git.reset(WORK, mode="hard", target="HEAD~1")
    assert sandbox.files.read(f"{WORK}/file") == "one\n"
    git.set_config("core.pager", "cat", scope="local", path=WORK)
    assert git.get_config("core.pager", scope="local", path=WORK) == "cat"
    git.dangerously_authenticate("agent", "secret", host="git.example.com")
    assert "git.example.com" in sandbox.files.read("/home/user/.git-credentials")


def test_a_repository_that_is_not_there(sandbox: Any) -> None:
    with pytest.raises(CommandExitException):
        sandbox.git.clone("/home/user/none.git", "/home/user/nowhere")
