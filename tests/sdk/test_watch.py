"""Watches, through the Python SDK: polled with the synchronous half, streamed with the asynchronous one."""

from __future__ import annotations

from typing import Any

import pytest
from e2b import FilesystemEventType, InvalidArgumentException, NotFoundException

from tests.sdk.client import Client, eventually

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]

CREATE, WRITE, REMOVE, RENAME, CHMOD = (
    FilesystemEventType.CREATE,
    FilesystemEventType.WRITE,
    FilesystemEventType.REMOVE,
    FilesystemEventType.RENAME,
    FilesystemEventType.CHMOD,
)


def _kinds(events: list[Any], name: str) -> list[FilesystemEventType]:
    return [event.type for event in events if event.name == name]


def test_events_of_a_file(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("one")
    watch = client.watch(sandbox, "one")
    sandbox.files.write("one/file", "content")
    eventually(lambda: len(watch.events()) >= 3)
    assert [(event.name, event.type) for event in watch.events()] == [
        ("file", CREATE),
        ("file", CHMOD),
        ("file", WRITE),
    ]
    sandbox.files.rename("one/file", "one/moved")
    sandbox.commands.run("chmod 600 one/moved; echo more >> one/moved")
    sandbox.files.remove("one/moved")
    sandbox.files.make_dir("one/below")
    sandbox.files.write("one/below/unseen", "x")
    sandbox.files.write("one/last", "x")
    events = watch.wait_for({"last"})
    assert _kinds(events, "file")[-1] == RENAME
    assert _kinds(events, "moved") == [CREATE, CHMOD, WRITE, REMOVE]
    assert not [event for event in events if "unseen" in event.name]
    watch.stop()


def test_entries_come_along_if_asked_for(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("entries")
    plain = client.watch(sandbox, "entries")
    watch = client.watch(sandbox, "entries", include_entry=True)
    sandbox.files.write("entries/file", "content", metadata={"k": "v"})
    sandbox.files.write("entries/gone", "")
    sandbox.files.remove("entries/gone")
    events = watch.wait_for({"file", "gone"})
    entry = next(event.entry for event in reversed(events) if event.name == "file")
    assert (entry.path, entry.owner, entry.size) == ("/home/user/entries/file", "user", 7)
    assert all(event.entry is None for event in plain.wait_for({"file"}))
    eventually(lambda: REMOVE in _kinds(watch.events(), "gone"))
    assert next(event.entry for event in watch.events() if event.type is REMOVE) is None
    plain.stop()
    watch.stop()


def test_nothing_in_new_folders_is_lost(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("deep")
    watch = client.watch(sandbox, "deep", recursive=True)
    sandbox.commands.run("cd deep; for n in {0..19}; do mkdir -p $n/b/c && touch $n/b/c/f; done")
    expected = {f"{number}{inner}" for number in range(20) for inner in ("", "/b", "/b/c", "/b/c/f")}
    events = watch.wait_for(expected)
    for name in expected:
        assert _kinds(events, name).count(CREATE) == 1, name
    sandbox.commands.run("rm -r deep/0; mv deep/1 deep/renamed; touch deep/renamed/b/c/g")
    events = watch.wait_for({"renamed", "renamed/b/c/g"})
    assert REMOVE in _kinds(events, "0/b/c/f")
    assert RENAME in _kinds(events, "1")
    watch.stop()


def test_a_thousand_files_at_once(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("many")
    watch = client.watch(sandbox, "many", recursive=True)
    sandbox.commands.run("cd many; mkdir -p x/y/z && touch x/y/z/{1..1000}")
    expected = {f"x/y/z/{number}" for number in range(1, 1001)}
    events = watch.wait_for(expected)
    created = [event.name for event in events if event.type is CREATE and event.name in expected]
    assert sorted(created) == sorted(expected)
    watch.stop()


def test_odd_names_are_told(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("odd watched")
    watch = client.watch(sandbox, "odd watched")
    names = {"a\nb", "日本 🚀", "-rf", "n" * 255, " "}
    for name in names:
        sandbox.files.write(f"/home/user/odd watched/{name}", "x")
    watch.wait_for(names)
    watch.stop()


def test_what_cant_be_watched_is_refused(client: Client, sandbox: Any) -> None:
    sandbox.files.write("plain", "x")
    with pytest.raises(NotFoundException):
        client.watch(sandbox, "no/such/folder")
    with pytest.raises(InvalidArgumentException):
        client.watch(sandbox, "plain")


def test_a_stopped_watch_is_gone(client: Client, sandbox: Any) -> None:
    sandbox.files.make_dir("stopped")
    for _ in range(30):
        client.watch(sandbox, "stopped", recursive=True).stop()
    eventually(
        lambda: (
            sandbox.commands.run("ls -l /proc/1/fd | grep -c inotify || true", user="root").stdout == "0\n"
        )
    )
