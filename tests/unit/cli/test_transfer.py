"""`aenv cp`, with the real envd behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.cli.download import checked_name
from aenv.cli.errors import CommandError
from aenv.cli.progress import Meter
from aenv.cli.transfer import Place, parse_place
from tests.unit.cli.support import Cli, ControlPlane

NAMES = ["plain", "with space", "ümlaut", "a%20b", "a+b&c=d", "new\nline", "-dash", "#?", "co:lon"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder on this side."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder that stands for the sandbox's."""
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


async def cp(cli: Cli, source: Path | str, destination: Path | str) -> str:
    done = await cli("cp", "-u", "root", str(source), str(destination))
    assert (done.code, done.out) == (0, b""), done.err
    return done.err


async def refused(cli: Cli, source: Path | str, destination: Path | str) -> str:
    done = await cli("cp", "-u", "root", str(source), str(destination))
    assert done.code == 1, done.err
    assert done.err.startswith("error: ")
    return done.err


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below, with its bytes; None for a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def make_tree(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in NAMES:
        (folder / "sub" / name).write_bytes(os.urandom(100))
    (folder / "sub" / "deep" / "nothing").write_bytes(b"")
    (folder / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "run").chmod(0o755)


async def test_a_folder_goes_and_comes_back(cli: Cli, here: Path, there: Path) -> None:
    make_tree(here)
    assert await cp(cli, here, f"i1:{there}/new") == "Copied 11 files, 910 B\n"
    assert tree(there / "new") == tree(here)
    assert (there / "new" / "run").stat().st_mode & 0o777 == 0o755
    assert (there / "new" / "sub" / "plain").stat().st_mode & 0o111 == 0

    await cp(cli, f"i1:{there}/new", here.parent / "back")
    assert tree(here.parent / "back") == tree(here)
    assert (here.parent / "back" / "run").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("size", [0, 1, 50_000_000])
async def test_a_file_goes_and_comes_back(cli: Cli, here: Path, there: Path, size: int) -> None:
    (here / "f").write_bytes(os.urandom(size))
    await cp(cli, here / "f", f"i1:{there}/made/g")
    await cp(cli, f"i1:{there}/made/g", here / "back")
    assert (here / "back").read_bytes() == (here / "f").read_bytes()


async def test_into_folders_that_exist(cli: Cli, here: Path, there: Path) -> None:
    (here / "d").mkdir()
    (here / "d" / "f").write_bytes(b"1")
    await cp(cli, here / "d", f"i1:{there}")
    await cp(cli, here / "d" / "f", f"i1:{there}")
    await cp(cli, f"{here}/d/.", f"i1:{there}/d2")
    await cp(cli, f"{here}/d/.", f"i1:{there}/d2")
    await cp(cli, here / "d" / "f", f"i1:{there}/d3/")
    assert tree(there) == {
        "d": None,
        "d/f": b"1",
        "f": b"1",
        "d2": None,
        "d2/f": b"1",
        "d3": None,
        "d3/f": b"1",
    }
    (here / "back").mkdir()
    await cp(cli, f"i1:{there}/d", here / "back")
    await cp(cli, f"i1:{there}/d/f", here / "back")
    await cp(cli, f"i1:{there}/d/.", here / "back" / "d")
    assert tree(here / "back") == {"d": None, "d/f": b"1", "f": b"1"}


async def test_links_are_left_out_and_named(cli: Cli, here: Path, there: Path) -> None:
    (here / "f").write_bytes(b"1")
    (here / "link").symlink_to("f")
    os.mkfifo(here / "pipe")
    said = await cp(cli, here, f"i1:{there}/up")
    assert f"left out {here}/link: " in said
    assert f"left out {here}/pipe: " in said
    assert tree(there / "up") == {"f": b"1"}
    said = await cp(cli, f"i1:{here}", here.parent / "down")
    assert f"left out {here}/link: " in said
    assert tree(here.parent / "down") == {"f": b"1"}


async def test_names_from_a_sandbox_cannot_steer_the_terminal(
    cli: Cli, here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (there / "\x1b[2Jlink").symlink_to("f")
    said = await cp(cli, f"i1:{there}", here / "down")
    assert "[2Jlink: " in said
    assert "\x1b" not in said

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("aenv.cli.progress.PATIENCE", 0.0)
    with Meter(1) as meter:
        meter.add("[/no markup]\x1b]0;title\x07", 1)
    assert "\x1b]0;" not in capsys.readouterr().err


async def test_a_file_in_the_way_is_replaced(cli: Cli, here: Path, there: Path) -> None:
    (there / "f").write_bytes(b"new")
    (here / "f").write_bytes(b"older and longer")
    await cp(cli, f"i1:{there}/f", here)
    assert tree(here) == {"f": b"new"}


async def test_what_cant_be_copied_says_why(cli: Cli, here: Path, there: Path) -> None:
    (here / "d").mkdir()
    (here / "f").write_bytes(b"1")
    assert "No such file" in await refused(cli, here / "nothing", f"i1:{there}")
    assert "doesn't exist in the sandbox" in await refused(cli, f"i1:{there}/nothing", here)
    assert "is a file" in await refused(cli, here / "d", f"i1:{here}/f")
    assert "is a file" in await refused(cli, f"i1:{here}/d", here / "f")
    assert "isn't a folder" in await refused(cli, here / "f", f"i1:{here}/f/")
    assert "doesn't exist" in await refused(cli, f"i1:{here}/f", f"{here}/no/such/")
    assert "doesn't exist" in await refused(cli, f"i1:{here}/f", here / "no" / "such")
    assert "neither a file nor a folder" in await refused(cli, "/dev/null", f"i1:{there}/x")
    assert tree(there) == {}
    assert tree(here) == {"d": None, "f": b"1"}


async def test_a_paused_sandbox_is_resumed(cli: Cli, control: ControlPlane, here: Path, there: Path) -> None:
    (here / "f").write_bytes(b"1")
    assert (await cp(cli, here / "f", f"i2:{there}")).startswith("i2 is paused: resuming it\n")
    assert control.states["i2"] == "running"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("i1:/a/b", Place("i1", "/a/b")),
        ("i1:rel", Place("i1", "rel")),
        ("i1:", Place("i1", "~")),
        ("i1:a:b", Place("i1", "a:b")),
        ("./i1:a", Place(None, "./i1:a")),
        ("/i1:a", Place(None, "/i1:a")),
        ("plain", Place(None, "plain")),
        ("Upper:a", Place(None, "Upper:a")),
    ],
)
def test_ends_of_a_copy(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(CommandError):
        checked_name(name)
