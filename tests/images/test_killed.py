"""A server that is killed while it makes a disk of an image: nothing finished is lost, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from tests.images.builder import archive, entry, files, image
from tests.images.converting import converting
from tests.images.pulling import until
from tests.images.registries import Registry
from tests.server import ROOT

LAYERS = [
    archive(entry(f"many/{number}", b"%d" % number) for number in range(5000)),
    files({"big": os.urandom(12 << 20)}),
    archive([*(entry(f"more/{number}", b"x" * number) for number in range(2000)), entry(".wh.big")]),
]

MOMENTS = {
    "before the first layer": ("image ", 3),
    "at the first layer": ("unpacking layer 1", 3),
    "within the first layer": ("3000 entries", 3),
    "at an overlay": ("unpacking layer 2", 2),
    "within an overlay": ("1000 entries", 1),
    "at the end": ("adding", 0),
    "within the last step": ("folders, accounts", 0),
}
"""The line after which the process is killed, and how many layers are left to do, at least one less."""


async def _start(name: str, home: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.images.converting", name, str(home)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=environment, limit=1 << 20
    )


def _leftovers(home: Path) -> list[str]:
    """Processes and loop devices that have to do with a folder."""
    found = []
    for entry_ in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry_ / "cmdline").read_text()
            if str(home) in command and int(entry_.name) != os.getpid():
                found.append(command)
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if str(home) in (text := backing.read_text()):
                found.append(text)
    return found


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_next_try_goes_on_from_there(
    registry: Registry, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    line, left = MOMENTS[moment]
    name = registry.push("killed", image(LAYERS))
    layers = 0
    process = await _start(name, tmp_path)
    assert process.stdout is not None
    async for said in process.stdout:
        layers += said.startswith(b"unpacking layer")
        if said.decode().startswith(line) and (moment != "within an overlay" or layers == 3):
            break
    process.kill()
    await process.wait()
    await until(lambda: not _leftovers(tmp_path))

    process = await _start(name, tmp_path)
    output, _ = await process.communicate()
    assert process.returncode == 0
    done = json.loads(output.splitlines()[-1])
    assert done in [
        [["apply_layer"]] * left + [["provision"]],
        [["apply_layer"]] * (left - 1) + [["provision"]],
    ]

    async with converting(tmp_path) as rig:
        found = await rig.tree((await rig.get(name)).capture)
        assert rig.edits == []
    assert "big" not in found
    assert len([path for path in found if path.startswith(("many/", "more/"))]) == 7000
    folders = list((tmp_path / "captures").iterdir())
    assert len(folders) == 4
    assert all(len(list(folder.iterdir())) == 1 for folder in folders)
