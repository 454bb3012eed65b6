"""Builds on the fake runtime: what they come to, what is cached, how they fail and end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from aenv.errors import InvalidRequest
from aenv.templates import build_log
from aenv.templates.jobs import Size
from tests.unit.templates.conftest import HASH, Builds


async def test_every_step_and_what_sandboxes_have_of_it(builds: Builds) -> None:
    await builds.upload(a_txt="content")
    template = await builds.build(
        ["ENV", "A", "1"],
        ["ENV", "B", "$A$A"],
        ["ARG", "C", "3"],
        ["COPY", "a.txt", "/opt/", "", ""],
        ["WORKDIR", "/srv/app"],
        ["RUN", "pwd && whoami && show B && show C"],
        ["USER", "bob"],
        ["RUN", "put who bob && whoami"],
        ["RUN", "whoami", "root"],
        files_hash=HASH,
        start_command="echo started",
        ready_command="has who",
        size=Size(4, 1024),
    )
    log = await builds.log(await builds.node.builder.find(template.id, template.build.id))
    assert [line.partition("[stdout]: ")[2] for line in log if "[stdout]" in line] == [
        *("/srv/app", "user", "11", "3", "bob", "root", "started")
    ]
    disk = await builds.disk(template)
    assert disk["/opt/a.txt"] == "content"
    assert disk["/srv/app"] == ["folder", "user"]
    assert disk["who"] == "bob"
    assert "bob:x:1001:1001::/home/bob:/bin/bash\n" in disk["/etc/passwd"]
    defaults = template.build.defaults
    assert (defaults.env, defaults.user, defaults.workdir) == ({"A": "1", "B": "11"}, "bob", "/srv/app")
    assert (defaults.start_command, defaults.ready_command) == ("echo started", "has who")
    assert template.build.resources == dataclasses.replace(
        template.build.resources, cpu_count=4, memory_mib=1024
    )
    sandbox = await builds.create("mine", env={"B": "mine"})
    assert sandbox.instance_id is not None
    told = builds.runtime.instances[sandbox.instance_id].guest.identity
    assert told["envVars"] == {"A": "1", "B": "mine"}
    assert (told["defaultUser"], told["defaultWorkdir"]) == ("bob", "/srv/app")
    snapshot = await builds.node.sandboxes.snapshot(sandbox.id)
    assert snapshot.build.defaults == defaults


async def test_a_second_build_does_nothing_again(builds: Builds) -> None:
    steps = (["RUN", "put a 1"], ["ENV", "A", "1"], ["RUN", "put b 2"])
    first = await builds.build(*steps, start_command="echo up", ready_command="has b")
    commands, boots = list(builds.runtime.commands), builds.runtime.boots
    second = await builds.build(*steps, start_command="echo up", ready_command="has b")
    assert builds.runtime.commands == commands
    assert builds.runtime.boots == boots
    assert second.build.id != first.build.id
    assert second.build.capture_id == first.build.capture_id
    third = await builds.build(*steps, ["RUN", "put c 3"])
    assert builds.runtime.commands == [*commands, "put c 3"]
    disk = await builds.disk(third)
    assert (disk["a"], disk["b"], disk["c"]) == ("1", "2", "3")


async def test_a_changed_step_and_all_after_it_are_done(builds: Builds) -> None:
    await builds.build(["RUN", "put a 1"], ["RUN", "put b 1"], ["RUN", "put c 1"])
    builds.runtime.commands.clear()
    template = await builds.build(["RUN", "put a 1"], ["RUN", "put b 2"], ["RUN", "put c 1"])
    assert builds.runtime.commands == ["put b 2", "put c 1"]
    assert (await builds.disk(template))["b"] == "2"


@pytest.mark.parametrize(
    ("options", "done"),
    [({"force": True}, ["put a 1", "put b 1"]), ({"forced": [2]}, ["put b 1"])],
)
async def test_force(builds: Builds, options: dict[str, object], done: list[str]) -> None:
    steps = (["RUN", "put a 1"], ["RUN", "put b 1"])
    first = await builds.build(*steps)
    builds.runtime.commands.clear()
    second = await builds.build(*steps, **options)
    assert builds.runtime.commands == done
    assert second.build.capture_id != first.build.capture_id
    builds.runtime.commands.clear()
    third = await builds.build(*steps)
    assert not builds.runtime.commands
    assert third.build.capture_id == second.build.capture_id


async def test_two_builds_alike_do_the_work_once(builds: Builds) -> None:
    steps = [["RUN", f"put key{number} x"] for number in range(5)]
    begun = [await builds.begin(*steps, name=name) for name in ("one", "two")]
    for job in begun:
        assert (await builds.end(job)).status == "ready"
    assert sorted(builds.runtime.commands) == [f"put key{number} x" for number in range(5)]
    assert builds.runtime.boots == 3  # the base's own, one for the steps, one for the start


async def test_a_snapshot_as_parent_has_what_its_disk_had_not(builds: Builds) -> None:
    sandbox = await builds.create("base")
    assert sandbox.instance_id is not None
    guest = builds.runtime.instances[sandbox.instance_id].guest
    guest._unwritten["fresh"] = "in memory only"
    snapshot = await builds.node.sandboxes.snapshot(sandbox.id, "snap")
    assert "fresh" not in guest.disk
    template = await builds.build(["RUN", "get fresh"], parent=snapshot.snapshot_id)
    assert (await builds.disk(template))["fresh"] == "in memory only"


async def test_a_template_as_parent_gives_what_it_has(builds: Builds) -> None:
    await builds.build(["ENV", "A", "1"], ["WORKDIR", "/srv"], ["USER", "bob"], name="parent")
    child = await builds.build(["ENV", "B", "$A"], ["RUN", "whoami && pwd"], parent="parent", name="child")
    assert child.build.defaults.env == {"A": "1", "B": "1"}
    builds.runtime.commands.clear()
    again = await builds.build(["ENV", "A", "1"], ["WORKDIR", "/srv"], ["USER", "bob"], name="parent")
    assert again.build.made_by is not None
    await builds.build(["ENV", "B", "$A"], ["RUN", "whoami && pwd"], parent="parent", name="child")
    assert not builds.runtime.commands  # the parent was built again, but is the same
    assert (child.build.defaults.user, child.build.defaults.workdir) == ("bob", "/srv")


async def test_a_parent_that_this_runtime_cannot_restore_is_booted(builds: Builds) -> None:
    identity = builds.runtime.identity
    await builds.build(["RUN", "put a 1"], name="parent")
    builds.runtime.identity = dataclasses.replace(identity, version="2")
    template = await builds.build(["RUN", "has a"], parent="parent", name="child")
    assert (await builds.disk(template))["a"] == "1"


async def test_the_disk_grows(builds: Builds) -> None:
    small = await builds.build(["RUN", "put a 1"], size=Size(min_free_disk_mib=9 * 1024))
    assert small.build.resources.disk_mib == 10240
    large = await builds.build(["RUN", "put a 1"], size=Size(min_free_disk_mib=20 * 1024))
    assert large.build.resources.disk_mib > 20 * 1024
    assert (await builds.disk(large))["grown"] is True
    again = await builds.build(["RUN", "put a 1"], size=Size(min_free_disk_mib=20 * 1024))
    assert again.build.resources == large.build.resources


async def test_tags(builds: Builds) -> None:
    first = await builds.build(["RUN", "put a 1"], name="mine:v1", tags=["stable", "v1"])
    assert (first.tag, first.names) == ("v1", ["default/mine"])
    second = await builds.build(["RUN", "put a 2"], name="mine")
    assert second.id == first.id
    pointing = {each.tag: each.build_id for each in await builds.node.templates.tags("mine")}
    assert pointing == {"v1": first.build.id, "stable": first.build.id, "default": second.build.id}


@pytest.mark.parametrize("name", ["base", "base:v1", "snap", "UPPER case", "other/mine", ""])
async def test_names_that_cannot_be_had(builds: Builds, name: str) -> None:
    sandbox = await builds.create("base")
    await builds.node.sandboxes.snapshot(sandbox.id, "snap")
    with pytest.raises(InvalidRequest):
        await builds.node.builder.request(name, (), Size())


async def test_a_name_that_is_being_built_is_taken(builds: Builds) -> None:
    job = await builds.begin(["RUN", "hang"], name="later")
    sandbox = await builds.create("base")
    with pytest.raises(InvalidRequest, match="being built"):
        await builds.node.sandboxes.snapshot(sandbox.id, "later")
    await builds.node.builder.cancel("later", job.id)
    assert (await builds.node.sandboxes.snapshot(sandbox.id, "later")).name == "later"


async def test_a_log_that_is_read_page_by_page_is_read_once(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask for the next hundred lines until there are none, also when the build is long over."""
    templates = [await builds.build(["RUN", f"echo {number}"], name=f"t{number}") for number in range(3)]
    read: list[Path] = []

    def counting(path: Path) -> Sequence[build_log.BuildLogEntry]:
        read.append(path)
        return original(path)

    original = build_log._read
    monkeypatch.setattr(build_log, "_read", counting)
    for template in reversed(templates):
        for _ in range(5):
            entries = await builds.node.builder.log(template.build.id)
            assert any(entry.message.endswith(f"]: {template.names[0][-1]}") for entry in entries)
    assert [path.stem for path in read] == [templates[0].build.id]
