"""Layers on a root file system: what they say is there afterwards, and nothing outside is."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard

from aenv.disks.edits import EditRefused
from tests.images.builder import archive, digest_of, entry, files
from tests.images.members import content, folder, hard_link, names, sha256, symlink
from tests.images.trees import tree, unpack, working_directory

NANO = 1_000_000_000
FORMS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_file_comes_with_what_belongs_to_it(root: Path, form: str) -> None:
    members = [
        folder("etc", mode=0o750, owner=(3, 4), mtime=1_000_000_001),
        entry("etc/one", b"one", mode=0o640, owner=(1000, 2000), mtime=1_000_000_002),
        entry("etc/setuid", b"", mode=0o6755, owner=(0, 5), mtime=1_000_000_003),
        symlink("etc/link", "../nowhere"),
        hard_link("etc/same", "etc/one"),
        entry("etc/fifo", kind=tarfile.FIFOTYPE, mode=0o622),
        entry("etc/null", kind=tarfile.CHRTYPE, mode=0o666, device=(1, 3)),
        entry("etc/disk", kind=tarfile.BLKTYPE, mode=0o660, device=(259, 70000), owner=(0, 6)),
        folder("tmp", mode=0o1777),
    ]
    found = unpack(root, archive(members, form=FORMS[form]))
    assert found["etc"] | {"mode": 0o750, "owner": [3, 4], "mtime": 1_000_000_001 * NANO} == found["etc"]
    assert found["etc/one"] == {
        "kind": "-",
        "mode": 0o640,
        "owner": [1000, 2000],
        "mtime": 1_000_000_002 * NANO,
        "xattrs": {},
        "size": 3,
        "content": sha256(b"one"),
        "same": "etc/one",
    }
    assert found["etc/same"] == found["etc/one"]
    assert (found["etc/setuid"]["mode"], found["etc/setuid"]["owner"]) == (0o6755, [0, 5])
    assert (found["etc/link"]["kind"], found["etc/link"]["target"]) == ("l", "../nowhere")
    assert (found["etc/fifo"]["kind"], found["etc/fifo"]["mode"]) == ("p", 0o622)
    assert (found["etc/null"]["kind"], found["etc/null"]["device"]) == ("c", [1, 3])
    assert (found["etc/disk"]["kind"], found["etc/disk"]["device"]) == ("b", [259, 70000])
    assert found["tmp"]["mode"] == 0o1777


def test_odd_and_long_names(root: Path) -> None:
    odd = [
        "with space",
        "new\nline",
        "tab\t",
        "\udcff\udcfe",
        "ü€",
        "-dash",
        "...",
        "a" * 255,
        ".whx",
        "back\\slash",
    ]
    long = "/".join(["d" * 100] * 12) + "/file"
    for form in ("gnu", "pax"):
        where = root / form
        where.mkdir()
        members = [entry(name, name.encode(errors="surrogateescape")) for name in [*odd, long]]
        found = unpack(where, archive([*members, symlink("link", long)], form=FORMS[form]))
        for name in [*odd, long]:
            assert content(found, name) == sha256(name.encode(errors="surrogateescape"))
        assert found["link"]["target"] == long


def test_times_and_attributes_of_pax(root: Path) -> None:
    capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    members = [
        entry("file", pax={"mtime": "1234567890.123456789", "SCHILY.xattr.user.a": "x\0y=z\n"}),
        entry("ping", pax={"SCHILY.xattr.security.capability": capability, "mtime": "-1.5"}),
        folder("folder", pax={"SCHILY.xattr.user.b": "", "mtime": "0.000000001"}),
        entry("big", pax={"uid": "4000000000", "gid": "3999999999"}),
    ]
    found = unpack(root, archive(members))
    assert found["file"]["mtime"] == 1234567890123456789
    assert found["file"]["xattrs"] == {"user.a": b"x\0y=z\n".hex()}
    assert found["ping"]["mtime"] == -1_500_000_000
    assert found["ping"]["xattrs"] == {"security.capability": capability.encode().hex()}
    assert (found["folder"]["mtime"], found["folder"]["xattrs"]) == (1, {"user.b": ""})
    assert found["big"]["owner"] == [4000000000, 3999999999]


def test_numbers_that_are_too_large_for_octal_digits(root: Path) -> None:
    members = [entry("file", b"x", owner=(1 << 24, 1 << 25), mtime=1 << 33), entry("old", mtime=-5)]
    found = unpack(root, archive(members, form=tarfile.GNU_FORMAT))
    assert (found["file"]["owner"], found["file"]["mtime"]) == ([1 << 24, 1 << 25], (1 << 33) * NANO)
    assert found["old"]["mtime"] == -5 * NANO


@pytest.mark.parametrize(
    "version", ["gnu", *(pytest.param(version, marks=pytest.mark.long) for version in ("0.0", "0.1", "1.0"))]
)
def test_sparse_files_stay_sparse(root: Path, tmp_path: Path, version: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        for index in range(40):  # more than a header has room for
            file.seek(index * (1 << 20))
            file.write(bytes([index + 1]) * 5000)
        file.truncate(1 << 30)
    (source / "hole").touch()
    os.truncate(source / "hole", 1 << 20)
    form = ["--format=gnu"] if version == "gnu" else ["--format=pax", f"--sparse-version={version}"]
    layer = subprocess.run(
        ["tar", "-C", source, "-S", *form, "-c", "sparse", "hole"], check=True, capture_output=True
    ).stdout
    assert len(layer) < 2 << 20
    found = unpack(root, layer)
    with working_directory(source):
        expected = tree()
    for name in ("sparse", "hole"):
        for facts in (found[name], expected[name]):
            facts["mtime"] //= NANO  # GNU's own form has no more
        assert found[name] == expected[name]
    assert (root / "sparse").stat().st_blocks * 512 < 2 << 20


def test_a_layer_like_that_of_a_distribution_is_the_same_as_its_source(root: Path, tmp_path: Path) -> None:
    """Thousands of files of all sizes, written by GNU tar."""
    source = tmp_path / "source"
    generator = random.Random(5)  # noqa: S311 - the same each time
    for index in range(3000):
        path = source / f"d{index % 40}" / f"e{index % 7}" / f"file{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.randbytes(generator.choice([0, 1, 511, 512, 513, 4096, 70_000])))
        os.chown(path, index % 5, index % 3)
        path.chmod(generator.choice([0o644, 0o755, 0o4711]))
        if index % 10 == 0:
            path.with_name(f"link{index}").symlink_to(path.name)
        if index % 13 == 0:
            path.with_name(f"hard{index}").hardlink_to(path)
    with working_directory(source):
        expected = tree()
    for number, form in enumerate(["gnu", "pax"]):
        target = root / str(number)
        target.mkdir()
        layer = subprocess.run(
            ["tar", "-C", source, f"--format={form}", "--xattrs", "-c", "."], check=True, capture_output=True
        ).stdout
        found = unpack(target, layer)
        if form == "gnu":  # whole seconds
            for facts in (*expected.values(), *found.values()):
                facts["seconds"] = facts.pop("mtime") // NANO
        assert found == expected
        with working_directory(source):
            expected = tree()


def test_whiteouts_take_away_what_is_below(root: Path) -> None:
    lower = files(
        {"a/one": b"1", "a/two": b"2", "b/deep/er/file": b"3", "c": b"4", "d/x": b"5", "d/y/z": b"6"}
    )
    upper = archive(
        [
            entry("a/.wh.one"),
            entry(".wh.b"),
            entry(".wh.c"),
            entry(".wh.nothing"),
            entry("gone/.wh.nothing"),
            entry("d/new", b"7"),
            entry("d/.wh..wh..opq"),
            entry("d/y/after", b"8"),
        ]
    )
    found = unpack(root, lower, upper)
    assert names(found) == {"a", "a/two", "d", "d/new", "d/y", "d/y/after"}


def test_whiteouts_spare_what_their_own_layer_has(root: Path) -> None:
    lower = files({"a/old": b"1", "b": b"2"})
    upper = [entry("a/new", b"3"), entry(".wh.a"), entry("b", b"4"), entry(".wh.b")]
    for layer in (archive(upper), archive([upper[1], upper[0], upper[3], upper[2]])):
        found = unpack(root, lower, layer)
        assert names(found) == {"a", "a/new", "b"}
        assert content(found, "b") == sha256(b"4")
        subprocess.run(["rm", "-r", root / "a", root / "b"], check=True)


KINDS = {
    "file": entry("x", b"new"),
    "folder": folder("x"),
    "symlink": symlink("x", "y"),
    "dangling": symlink("x", "nowhere"),
    "hard link": hard_link("x", "y/file"),
    "fifo": entry("x", kind=tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("below", KINDS)
@pytest.mark.parametrize("above", KINDS)
def test_any_kind_takes_the_place_of_any_other(root: Path, below: str, above: str) -> None:
    common = [entry("y/file", b"old")]
    lower = [*common, KINDS[below], *([entry("x/in", b"it")] if below == "folder" else [])]
    found = unpack(root, archive(lower), archive([KINDS[above]]))
    other = root.parent / "other"
    other.mkdir(mode=0o755)
    expected = unpack(other, archive([*common, KINDS[above]]))
    assert found["x"] == expected["x"]
    assert content(found, "y/file") == sha256(b"old")
    kept = {"x/in"} if below == above == "folder" else set()
    assert names(found) == names(expected) | kept


def test_a_folder_that_a_layer_mentions_again_gets_all_that_is_said_of_it(root: Path) -> None:
    first = [folder("a", pax={"SCHILY.xattr.user.old": "1"}), entry("a/file", b"x")]
    second = [folder("a", mode=0o700, owner=(7, 8), mtime=5, pax={"SCHILY.xattr.user.new": "2"})]
    found = unpack(root, archive(first), archive(second))
    assert found["a"] == {
        "kind": "d",
        "mode": 0o700,
        "owner": [7, 8],
        "mtime": 5 * NANO,
        "xattrs": {"user.new": b"2".hex()},
    }
    assert "a/file" in found


def test_folders_that_a_layer_does_not_mention(root: Path) -> None:
    lower = archive([folder("a", mtime=5), folder("a/b", mtime=6, mode=0o711)])
    found = unpack(root, lower, files({"a/b/file": b"", "a/new/er/file": b""}))
    assert (found["a"]["mtime"], found["a/b"]["mtime"], found["a/b"]["mode"]) == (5 * NANO, 6 * NANO, 0o711)
    assert (found["a/new"]["mode"], found["a/new"]["owner"]) == (0o755, [0, 0])
    assert found["a/new"]["mtime"] == found["a/new/er"]["mtime"] == found["a/new/er/file"]["mtime"]


def test_the_root_itself(root: Path) -> None:
    found = unpack(root, archive([folder("./", mode=0o711, owner=(1, 2), mtime=9)]))
    assert found == {
        ".": {"kind": "d", "mode": 0o711, "owner": [1, 2], "mtime": 9 * NANO, "xattrs": {}},
    }


def test_a_symlink_below_is_followed_inside_and_never_written_through(root: Path) -> None:
    lower = archive(
        [
            folder("usr/lib"),
            symlink("lib", "usr/lib"),
            entry("usr/lib/target", b"1"),
            symlink("usr/lib/l", "target"),
        ]
    )
    upper = files({"lib/so": b"2", "lib/l": b"3"})
    found = unpack(root, lower, upper)
    assert (content(found, "usr/lib/so"), found["lib"]["kind"]) == (sha256(b"2"), "l")
    assert (content(found, "usr/lib/l"), content(found, "usr/lib/target")) == (sha256(b"3"), sha256(b"1"))


def test_a_folder_that_was_replaced_is_not_remembered(root: Path) -> None:
    members = [entry("a/b/one", b"1"), symlink("a", "/c"), folder("c/b"), entry("a/b/two", b"2")]
    found = unpack(root, archive(members))
    assert names(found) == {"a", "c", "c/b", "c/b/two"}


def test_trees_of_any_depth_are_removed(root: Path) -> None:
    deep = "/".join("d" for _ in range(1900))
    found = unpack(root, archive([entry(f"{deep}/file", b"x")]), archive([entry(".wh.d")]))
    assert names(found) == set()


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_compression_and_digest(root: Path, compression: str) -> None:
    layer = files({"file": os.urandom(3 << 20), "zeros": bytes(5 << 20)})
    half = len(layer) // 2
    compressed = {
        "none": layer,
        "gzip": gzip.compress(layer[:half]) + gzip.compress(layer[half:]) + bytes(100),
        "zstd": zstandard.compress(layer[:half]) + zstandard.compress(layer[half:]),
    }[compression]
    found = unpack(root, compressed, compression=compression, diff_id=digest_of(layer))
    assert found["file"]["size"] == 3 << 20
    with pytest.raises(EditRefused, match=f"has the digest {digest_of(layer)}, the image says sha256:00"):
        unpack(root, compressed, compression=compression, diff_id="sha256:00")
    if compression != "none":
        with pytest.raises(EditRefused, match=r"ends too early|ends in the middle"):
            unpack(root, compressed[: len(compressed) // 3], compression=compression)
        broken = compressed[:5000] + b"broken" + compressed[5006:]
        with pytest.raises(EditRefused, match=r"damaged|has the digest"):
            unpack(root, broken, compression=compression, diff_id=digest_of(layer))
