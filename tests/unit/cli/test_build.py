"""Builds from Dockerfiles on the command line, against a whole server on the fake runtime."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from aenv.cli.build_context import BuildContext
from aenv.cli.dockerfile import Copied
from aenv.cli.errors import CommandError
from tests.unit.cli.support import Cli


def context(folder: Path, files: dict[str, str]) -> BuildContext:
    """A folder with these files."""
    for name, text in files.items():
        path = folder / "context" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    scratch = folder / "scratch"
    scratch.mkdir()
    return BuildContext(folder / "context", folder / "context" / "Dockerfile", scratch)


def names(found: BuildContext, *sources: str, to: str = "/to/", **options: object) -> tuple[str, list[str]]:
    """The source in the archive, and what is in that."""
    copied = Copied(sources, to, "0:0", "", **options)  # type: ignore[arg-type]
    upload, source, destination = found.upload(copied, 1)
    assert destination == to
    data = b"".join(upload.pieces())
    assert len(data) == upload.size
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return source, archive.getnames()


def test_what_is_copied(tmp_path: Path) -> None:
    found = context(tmp_path, {"a/1.txt": "", "a/sub/2.txt": "", "b.txt": "", "c.md": ""})
    assert names(found, "a") == (".", ["1.txt", "sub", "sub/2.txt"])
    assert names(found, "/a/sub/", "b.txt") == (".", ["2.txt", "b.txt"])
    assert names(found, "*.txt") == (".", ["b.txt"])
    assert names(found, "b.txt", to="/to") == ("b.txt", ["b.txt"])
    assert names(found, ".", excluded=["*.md", "a"]) == (".", ["b.txt"])
    assert names(found, texts={"EOF": "x"}, to="/to") == ("EOF", ["EOF"])


def test_what_is_ignored_is_not_there(tmp_path: Path) -> None:
    ignored = "# a comment\n*.log\nnode_modules\n!keep.log\n/out\n!/out/keep\n"
    files = dict.fromkeys(("a.log", "keep.log", "node_modules/x", "out/keep", "out/not"), "")
    found = context(tmp_path, {".dockerignore": ignored, **files})
    assert names(found, ".") == (".", [".dockerignore", "keep.log", "out", "out/keep"])
    for source in ("a.log", "nosuch", "../context/keep.log", "*.none"):
        with pytest.raises(CommandError, match=r"there is no such file|leads out"):
            names(found, source)


def test_the_hash_is_of_content_and_mode_alone(tmp_path: Path) -> None:
    found = context(tmp_path, {"a": "text"})
    path, copied = tmp_path / "context/a", Copied(["a"], "/a", "0:0", "")
    before = found.upload(copied, 1)[0].files_hash
    os.utime(path, (1, 1))
    assert found.upload(copied, 1)[0].files_hash == before
    path.chmod(0o755)
    assert found.upload(copied, 1)[0].files_hash != before


async def test_what_makes_no_sense_is_refused(cli: Cli, tmp_path: Path) -> None:
    for text, arguments, said in (
        (None, [], "can't be read"),
        ("FROM x\nCOPY nosuch /", [], "Dockerfile, line 2: COPY nosuch"),
        ("FROM x\nONBUILD RUN a", [], "line 2: ONBUILD"),
        ("FROM x", ["--build-arg", "NOSUCH"], "no such variable"),
        ("FROM x", ["--target", "y"], "no stage 'y'"),
    ):
        if text is not None:
            (tmp_path / "Dockerfile").write_text(text)
        done = await cli("build", str(tmp_path), *arguments)
        assert done.code in {1, 2}
        assert said in done.err
