"""Commands on templates, against a whole server on the fake runtime."""

from __future__ import annotations

import json

import pytest

from tests.unit.api.support import Server
from tests.unit.cli.support import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_template_is_shown_tagged_and_deleted(aenv: Cli, server: Server) -> None:
    sandbox = await server.create()
    await aenv("snapshot", "create", sandbox, "--name", "mine")
    found = json.loads((await aenv("template", "info", "mine")).out)
    build = found["buildID"]
    shown = (await aenv("template", "info", "mine", "-o", "table")).out.decode()
    assert "default/mine" in shown
    assert build in shown

    assert (await aenv("template", "alias", "mine")).out.decode().strip() == found["templateID"]
    assert "v1" in (await aenv("template", "tag", "mine", "v1", "-o", "table")).out.decode()
    tags = json.loads((await aenv("template", "tag", "mine")).out)
    assert {tag["tag"]: tag["buildID"] for tag in tags} == dict.fromkeys(("default", "v1"), build)
    assert (await aenv("template", "tag", "mine", "v1", "--remove")).out == b"Removed v1 from mine\n"
    assert len(json.loads((await aenv("template", "tag", "mine")).out)) == 1

    await server.request("DELETE", f"/sandboxes/{sandbox}")
    assert (await aenv("template", "rm", "mine")).out == b"Deleted template mine\n"
    free = await aenv("template", "alias", "mine")
    assert free.code == 1
    assert "not found" in free.err


async def test_what_makes_no_sense_is_refused(aenv: Cli) -> None:
    missing = await aenv("template", "info", "nosuch")
    assert missing.code == 1
    assert "aenv template ls" in missing.err
    assert (await aenv("template", "tag", "base", "--remove")).code == 2
