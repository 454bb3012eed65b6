"""What COPY takes of an archive, and where it goes; an account that is missing."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from aenv.errors import InvalidRequest
from aenv.templates import archive
from aenv.templates.accounts import Accounts
from aenv.templates.archive import BadArchive

TREE = ["app", "app/main.py", "app/sub", "app/sub/x.txt", "app/.env.local", "README.md", "a.txt", "b.txt"]


def tar(path: Path, names: Iterable[str], *, mode: str = "w:gz") -> Path:
    """An archive in which a name without a dot in it is a folder; `->` makes links, `=>` hard ones."""
    with tarfile.open(path, mode) as out:  # type: ignore[call-overload]
        for text in names:
            name, _, target = text.replace("=>", "->").partition("->")
            info = tarfile.TarInfo(name)
            info.mtime = 1_500_000_000.5
            if target:
                info.type, info.linkname = tarfile.LNKTYPE if "=>" in text else tarfile.SYMTYPE, target
                out.addfile(info)
            elif "." in name.rpartition("/")[2].strip("."):
                info.size, info.mode = len(name), 0o640
                out.addfile(info, io.BytesIO(name.encode()))
            else:
                info.type, info.mode = tarfile.DIRTYPE, 0o750
                out.addfile(info)
    return path


def unpacked(path: Path, where: archive.Plan) -> dict[str, tarfile.TarInfo]:
    """The entries of the renamed archive, whose files have their old names as content."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.renamed(path, where)))) as found:
        entries = {info.name: info for info in found}
        for info in entries.values():
            if info.isreg():
                content = found.extractfile(info)
                assert content is not None
                assert content.read().decode().rpartition("/")[2] in {info.name.rpartition("/")[2], "a.txt"}
    return entries


@pytest.mark.parametrize(
    ("source", "destination", "into", "targets"),
    [
        ("a.txt", "/opt/a", False, {"/opt/a"}),
        ("a.txt", "/opt", True, {"/opt/a.txt"}),
        ("a.txt", "/opt/", False, {"/opt/a.txt"}),
        ("./a.txt", "/", True, {"/a.txt"}),
        ("app/sub/x.txt", "/opt/", False, {"/opt/x.txt"}),
        ("app/sub", "/opt/new", False, {"/opt/new", "/opt/new/x.txt"}),
        ("app/sub/", "/opt/", False, {"/opt", "/opt/x.txt"}),
        ("app", "/", True, {"/", "/main.py", "/sub", "/sub/x.txt", "/.env.local"}),
        ("*.txt", "/opt", False, {"/opt/a.txt", "/opt/b.txt"}),
        ("?.txt", "/opt", False, {"/opt/a.txt", "/opt/b.txt"}),
        ("[!b].txt", "/opt", False, {"/opt"}),
        ("app/*", "/opt", False, {"/opt", "/opt/main.py", "/opt/x.txt", "/opt/.env.local"}),
        ("**/*.txt", "/opt/", False, {"/opt/a.txt", "/opt/b.txt", "/opt/x.txt"}),
        (
            "a*",
            "/opt/",
            False,
            {"/opt", "/opt/main.py", "/opt/sub", "/opt/sub/x.txt", "/opt/.env.local", "/opt/a.txt"},
        ),
    ],
)
def test_where_entries_go(
    tmp_path: Path, source: str, destination: str, into: bool, targets: set[str]
) -> None:
    path = tar(tmp_path / "a", TREE)
    where = archive.plan(archive.listing(path), source, destination, into=into)
    assert {
        "/" + name.strip("./") if name == "." else f"/{name}" for name in unpacked(path, where)
    } == targets


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a*b*c", "aXbXbc", True),
        ("a*b*c", "aXcXb", False),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "ab", False),
        ("*ab", "abab", True),
        ("*[ab]?c*", "xbbc", True),
        ("x**y", "xzy", True),
        ("a/**/b/**/c.txt", "a/b/b/d/c.txt", True),
        ("a/**/b/**/c.txt", "a/c.txt", False),
        ("**/b/c/**/d", "b/b/c/d", True),
        ("**/**/d", "d", True),
        ("a/**", "a/b", True),
        ("**/*b/**/b*", "ab/c/ba", True),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert archive.roots([name], pattern) == ([name] if matches else [])


@pytest.mark.parametrize(
    "pattern", ["*a" * 30 + "b", "**/a*a/" * 20 + "b", "*" * 200 + "b", "**/" * 99 + "b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    name = "/".join(["a" * 100] * 20)
    began = time.process_time()
    assert archive.roots([name], pattern) == []
    assert time.process_time() - began < 2  # or else years


def test_many_files_that_a_pattern_names() -> None:
    names = {f"data/{number}.json": False for number in range(20_000)}
    began = time.process_time()
    where = archive.plan(archive.Listing(names), "data/*.json", "/srv", into=False)
    assert {where.target(name) for name in names} == {f"/srv/{number}.json" for number in range(20_000)}
    assert time.process_time() - began < 5  # it was more than a minute


def test_the_whole_context(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", [".", *TREE], mode="w")
    where = archive.plan(archive.listing(path), ".", "/srv/app", into=False)
    assert set(unpacked(path, where)) == {"srv/app", *(f"srv/app/{name}" for name in TREE)}


def test_what_an_entry_keeps(tmp_path: Path) -> None:
    long = "app/" + "n" * 180 + ".txt"
    path = tar(tmp_path / "a", ["app", "app/a.txt", long, "app/soft->../a.txt", "app/hard.txt=>app/a.txt"])
    where = archive.plan(archive.listing(path), "app", "/opt", into=False)
    found = unpacked(path, where)
    assert (found["opt/a.txt"].mode, found["opt/a.txt"].mtime) == (0o640, 1_500_000_000.5)
    assert found["opt"].isdir()
    assert found["opt"].mode == 0o750
    assert found["opt/soft"].linkname == "../a.txt"
    assert (found["opt/hard.txt"].islnk(), found["opt/hard.txt"].linkname) == (True, "opt/a.txt")
    assert found[long.replace("app", "opt", 1)].size == len(long)


def test_a_folder_shows_by_what_is_in_it(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", ["app/x.txt"])
    where = archive.plan(archive.listing(path), "app", "/opt", into=False)
    assert set(unpacked(path, where)) == {"opt/x.txt"}


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (["../x.txt"], "."),
        (["/x.txt"], "."),
        (["a/../../x.txt"], "."),
        (["x.txt=>../y"], "."),
        (["a.txt"], "b.txt"),
    ],
)
def test_archives_that_are_of_no_use(tmp_path: Path, names: list[str], source: str) -> None:
    path = tar(tmp_path / "a", names)
    with pytest.raises(BadArchive):
        archive.plan(archive.listing(path), source, "/opt", into=False)


def test_a_hard_link_to_what_is_not_copied(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", ["a.txt", "b.txt=>a.txt"])
    where = archive.plan(archive.listing(path), "b.txt", "/opt", into=False)
    with pytest.raises(BadArchive, match="hard link"):
        list(archive.renamed(path, where))


def test_what_is_no_archive(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a", [f"{number}.txt" for number in range(200)]).read_bytes()
    for number, content in enumerate((b"", b"no archive" * 1000, whole[: len(whole) // 2], bytes(10240))):
        path = tmp_path / str(number)
        path.write_bytes(content)
        with pytest.raises(BadArchive):
            archive.listing(path)
    with pytest.raises(FileNotFoundError):
        archive.listing(tmp_path / "none")


def _extended(kind: bytes, content: bytes, count: int) -> bytes:
    out = io.BytesIO()
    for _ in range(count):
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, len(content)
        out.write(info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512))
    file = tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT)
    return out.getvalue() + file + bytes(1024)


@pytest.mark.parametrize(
    ("kind", "content", "count"),
    [
        (tarfile.XHDTYPE, bytes(2 << 20), 1),
        (tarfile.XGLTYPE, bytes(2 << 20), 1),
        (tarfile.GNUTYPE_LONGNAME, bytes(2 << 20), 1),
        (tarfile.XHDTYPE, b"12 path=abc\n", 2000),
        (tarfile.XGLTYPE, b"".join(b"9 k%03d=x\n" % number for number in range(200)), 1),
    ],
)
def test_headers_are_no_way_to_much_memory(tmp_path: Path, kind: bytes, content: bytes, count: int) -> None:
    (tmp_path / "a").write_bytes(_extended(kind, content, count))
    with pytest.raises(BadArchive):
        archive.listing(tmp_path / "a")


def test_long_names_are_no_way_to_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a", [f"{number}{'n' * 200}.txt" for number in range(100)])
    monkeypatch.setattr(archive, "MOST_NAMES", 10_000)
    with pytest.raises(BadArchive, match="too long names"):
        archive.listing(path)


def test_devices_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w") as out:
        info = tarfile.TarInfo("null")
        info.type = tarfile.CHRTYPE
        out.addfile(info)
    with pytest.raises(BadArchive, match="neither"):
        archive.listing(tmp_path / "a")


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="pattern"):
        archive.roots(["a"], "[z-a]")


async def test_pieces_come_in_order() -> None:
    assert [piece async for piece in archive.in_pieces(iter([b"a", b"b"]))] == [b"a", b"b"]


def test_a_new_account() -> None:
    known = Accounts(
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh",
        "root:x:0:",
        "root:*:::::::\n",
        None,
    )
    assert "user" in known
    assert "bob" not in known
    changed = known.with_user("bob", "/bin/sh")
    assert changed == Accounts(
        f"{known.passwd}\nbob:x:1001:1001::/home/bob:/bin/sh\n",
        "root:x:0:\nbob:x:1001:\n",
        "root:*:::::::\nbob:*:19000:0:99999:7:::\n",
        None,
    )


def test_an_account_where_there_are_none() -> None:
    changed = Accounts(None, None, None, None).with_user("bob", "/sbin/nologin")
    assert changed.passwd == "root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1000::/home/bob:/sbin/nologin\n"
    assert (changed.group, changed.shadow) == ("root:x:0:\nbob:x:1000:\n", None)


def test_an_account_with_a_group_that_is_there() -> None:
    known = Accounts("root:x:0:0::/:/bin/sh\n", "root:x:0:\nstaff:x:50:\n", None, "root:::\nstaff:!::\n")
    changed = known.with_user("staff", "/bin/sh")
    assert (changed.group, changed.gshadow) == (known.group, known.gshadow)
    assert changed.passwd is not None
    assert "staff:x:1000:50:" in changed.passwd
