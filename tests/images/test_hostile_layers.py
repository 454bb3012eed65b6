"""Layers that want out, or to break something: contained, or refused with words."""

from __future__ import annotations

import gzip
import io
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aenv.disks.edits import EditRefused
from aenv.images.unpack import apply_layer
from tests.images.builder import archive, entry, files
from tests.images.members import content, folder, hard_link, sha256, symlink
from tests.images.trees import in_root, unpack


@pytest.mark.parametrize(
    "members",
    [
        [entry("../../escaped", b"x")],
        [entry("a/../../../escaped", b"x")],
        [entry("/escaped", b"x")],
        [entry("//..//./escaped", b"x")],
        [symlink("up", "../../.."), entry("up/escaped", b"x")],
        [symlink("top", "/"), symlink("again", "top/.."), entry("again/escaped", b"x")],
        [symlink("dir", "/new/folder"), entry("dir/../../escaped", b"x"), entry("escaped", b"x")],
        [folder("a"), symlink("a/b", "../.."), folder("a/b/escaped")],
    ],
)
def test_nothing_leads_out(root: Path, members: list[Any]) -> None:
    found = unpack(root, archive(members))
    assert "escaped" in found
    assert [path.name for path in root.parent.iterdir()] == ["root"]


@pytest.mark.parametrize("target", ["../../secret", "/../secret", "../root/../secret"])
def test_links_can_not_reach_out(root: Path, target: str) -> None:
    (root.parent / "secret").write_text("secret")
    with pytest.raises(EditRefused, match="which isn't there"):
        unpack(root, archive([hard_link("stolen", target)]))
    found = unpack(root, archive([symlink("a", target), entry("a", b"mine")]))
    assert content(found, "a") == sha256(b"mine")
    assert (root.parent / "secret").read_text() == "secret"


def _header(member: tuple[tarfile.TarInfo, bytes], at: int, value: bytes) -> bytes:
    """An archive whose first header has other bytes at one place, and the right checksum."""
    layer = bytearray(archive([member], form=tarfile.GNU_FORMAT))
    layer[at : at + len(value)] = value
    layer[148:156] = b" " * 8
    layer[148:156] = b"%06o\0 " % sum(layer[:512])
    return bytes(layer)


HUGE = b"\x80\0\0\0\x7f" + b"\xff" * 7
HOSTILE = {
    "no archive": (b"\x7fELF" + bytes(2000), "checksum is wrong"),
    "cut short": (files({"file": b"x" * 5000})[:2000], "ends in the middle"),
    "huge file": (_header(entry("file", b"x"), 124, HUGE), "ends in the middle|a size of"),
    "negative size": (_header(entry("file", b"x"), 124, b"\xff" * 12), "has a size of|bytes"),
    "huge pax header": (_header(entry("x", kind=tarfile.XHDTYPE), 124, HUGE), "are refused"),
    "huge long name": (_header(entry("x", kind=b"L"), 124, HUGE), "are refused"),
    "no number": (_header(entry("file", b"x"), 124, b"99999999999\0"), "is no number"),
    "unknown kind": (_header(entry("file"), 156, b"Z"), "unknown kind"),
    "impossible owner": (_header(entry("file"), 108, b"\xff" * 8), "owner that can't be"),
    "impossible device": (
        _header(entry("dev", kind=tarfile.CHRTYPE), 329, b"\x80\0\0\x01\0\0\0\0"),
        "can't be a device",
    ),
    "damaged pax": (
        archive([entry("x", b"9999 path=y\n", kind=tarfile.XHDTYPE), entry("y")], form=tarfile.USTAR_FORMAT),
        "pax header is damaged",
    ),
    "zero byte in a name": (
        archive([entry("x", b"12 path=a\0b\n", kind=tarfile.XHDTYPE), entry("y")], form=tarfile.USTAR_FORMAT),
        "zero byte",
    ),
    "whiteout of the parent": (archive([entry("a/.wh...")]), "takes nothing away"),
    "whiteout of nothing": (archive([entry("a/.wh.")]), "takes nothing away"),
    "file as folder": (files({"a": b"x", "a/b": b"y"}), "can't be put there"),
    "loop of links": (archive([symlink("a", "b"), symlink("b", "a"), entry("a/c")]), "can't be put there"),
    "link to nothing": (archive([hard_link("a", "b")]), "which isn't there"),
    "name too long": (files({"x" * 300: b""}), "can't be put there: File name too long"),
    "attribute too large": (
        archive([entry("a", pax={"SCHILY.xattr.user.a": "x" * 70_000})]),
        "can't be put there",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_can_not_be_is_refused_with_words(root: Path, what: str) -> None:
    layer, words = HOSTILE[what]
    with pytest.raises(EditRefused, match=words):
        unpack(root, layer)


def _headers(kind: bytes) -> bytes:
    """Each of them is small enough, and all of them together are not."""
    value = b"x" * (4 << 20)
    records = [b"%d key%d=%b\n" % (len(value) + 14, number, value) for number in range(5)]
    return archive([entry("x", each, kind=kind) for each in records], form=tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_many_headers_are_no_way_to_much_memory(root: Path, kind: bytes) -> None:
    with pytest.raises(EditRefused, match="are refused"):
        unpack(root, _headers(kind))


def test_a_map_of_holes_without_numbers(root: Path) -> None:
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    with pytest.raises(EditRefused, match="no numbers"):
        unpack(root, archive([entry("file", b"1" * 5000, pax=pax)]))


SPARSE = {
    "overlap": [(0, 10), (5, 10)],
    "beyond the end": [(0, 10), (1 << 40, 10)],
    "more than there is": [(0, 5000)],
}


@pytest.mark.parametrize("what", SPARSE)
def test_maps_of_holes_that_can_not_be_are_refused(root: Path, what: str) -> None:
    numbers = ",".join(f"{offset},{length}" for offset, length in SPARSE[what])
    pax = {"GNU.sparse.map": numbers, "GNU.sparse.size": "1000", "GNU.sparse.name": "file"}
    with pytest.raises(EditRefused, match="map of holes"):
        unpack(root, archive([entry("file", bytes(20), pax=pax)]))


def test_a_bomb_of_zeros_takes_no_memory(root: Path) -> None:
    """2 GiB of a hole's zeros in 2 MiB of gzip: seen as it comes, and its digest is wrong."""
    info = tarfile.TarInfo("file")
    info.size = 2 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    chunk = gzip.compress(bytes(64 << 20), 9)
    bomb = gzip.compress(header) + chunk * 4

    def measured() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(EditRefused, match="ends in the middle"):
            apply_layer(io.BytesIO(bomb), "gzip", None)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert in_root(root, measured) < 32 << 10  # KiB


def test_fields_of_a_header_may_have_rubbish_behind_them(root: Path) -> None:
    layer = _header(entry("file", b"x" * 8, mode=0o644), 100, b"644\0abcd")
    assert unpack(root, layer)["file"]["mode"] == 0o644
