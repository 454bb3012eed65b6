"""The schema: what an older server wrote is kept, what a newer one wrote is left alone."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from aenv.database import _VERSION_1, Database
from aenv.errors import HostNotReady
from aenv.runtimes.base import Resources
from aenv.sandboxes.models import Template
from aenv.templates import store, tags

BUILD = str(uuid.uuid4())


def template(identifier: str, name: str | None, source: str | None) -> str:
    """A record as version 1 wrote it."""
    return json.dumps(
        {
            "id": identifier,
            "build_id": BUILD if source is None else str(uuid.uuid4()),
            "name": name,
            "capture_id": f"c{identifier}",
            "resources": {"cpu_count": 2, "memory_mib": 512, "disk_mib": 10240},
            "created_at": 5.25,
            "updated_at": 1795983524.3931153,
            "source_sandbox_id": source,
        }
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database of version 1 with three templates."""
    path = tmp_path / "aenv.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_VERSION_1 + "PRAGMA user_version=1;")
        rows = [template("t1", "base", None), template("t2", "mine", "i1"), template("t3", None, "i2")]
        connection.executemany("INSERT INTO templates (record) VALUES (?)", [(row,) for row in rows])
        connection.commit()
    return path


async def test_templates_of_version_1_are_kept(old: Path) -> None:
    for _ in range(2):  # the second time there is nothing left to do
        database = await Database.open(old)
        try:
            base = await database.run(lambda c: store.resolve(c, "base"))
            mine = await database.run(lambda c: store.resolve(c, "default/mine:default"))
            every = await database.run(lambda c: store.everything(c, each_build=True))
            assigned = await database.run(lambda c: tags.current(c, "t1"))
        finally:
            await database.close()
    assert base == Template(
        id="t1",
        name="base",
        namespace=None,
        public=True,
        created_at=5.25,
        updated_at=1795983524.3931153,
        spawn_count=0,
        last_spawned_at=None,
        build_count=1,
        build=base.build,
        tag="default",
    )
    assert (base.build.id, base.build.capture_id, base.build.created_at) == (BUILD, "ct1", base.updated_at)
    assert base.build.resources == Resources(2, 512, 10240)
    assert (mine.build.source_sandbox_id, mine.public, mine.names) == ("i1", False, ["default/mine"])
    assert {found.snapshot_id for found in every} == {"base:default", "default/mine:default", "t3:default"}
    assert [(each.tag, each.build_id) for each in assigned] == [("default", BUILD)]


async def test_a_migration_that_fails_changes_nothing(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("CREATE TABLE builds (something TEXT)")
        connection.commit()
    with pytest.raises(HostNotReady, match="builds"):
        await Database.open(old)
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM templates").fetchone() == (3,)


async def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "aenv.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(HostNotReady, match="format 99"):
        await Database.open(path)
