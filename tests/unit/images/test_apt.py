"""Of the machine's apt settings only Debian's own archives count, and no password reaches a guest."""

from __future__ import annotations

from pathlib import Path

from aenv.images.apt import AptSettings, Source, parse_options, parse_targets

TARGETS = """\
Debian|bookworm|bookworm|https://me:secret@mirror.example/debian/|main
Debian|bookworm|bookworm|https://me:secret@mirror.example/debian/|contrib
Debian|bookworm-security|bookworm-security|https://mirror.example/debian-security/|main
Debian Backports|bookworm-backports|bookworm-backports|https://mirror.example/debian/|main
Node Source|nodistro|nodistro|https://node.example/node_20.x/|main
||bookworm|https://other.example/debian/|main
Debian|bookworm|bookworm|file:/srv/debian/|main
"""


def test_only_debian_archives_of_the_release_are_taken() -> None:
    assert parse_targets(TARGETS, "bookworm") == (
        Source("https://me:secret@mirror.example/debian/", "bookworm", ("main", "contrib")),
        Source("https://mirror.example/debian-security/", "bookworm-security", ("main",)),
    )


def test_another_release_or_one_without_its_main_suite_gives_none() -> None:
    assert parse_targets(TARGETS, "trixie") == ()
    assert parse_targets(TARGETS.splitlines()[2], "bookworm") == ()


def test_the_guest_gets_the_archive_without_the_password() -> None:
    source = parse_targets(TARGETS, "bookworm")[0]
    assert "me:secret@" in source.line(private=True)
    assert source.line(private=False).endswith("] https://mirror.example/debian/ bookworm main contrib")


def test_a_list_of_mirrors_is_resolved_to_its_first(tmp_path: Path) -> None:
    mirrors = tmp_path / "mirrors.list"
    mirrors.write_text("# mirrors\nhttps://first.example/debian priority:1\nhttps://second.example/debian\n")
    line = f"Debian|bookworm|bookworm|mirror+file:{mirrors}/|main"
    assert parse_targets(line, "bookworm")[0].uri == "https://first.example/debian"


def test_only_what_reaches_and_checks_archives_is_taken_from_the_options() -> None:
    options = parse_options(
        'Acquire "";\n'
        'Acquire::http::Proxy "http://me:secret@proxy.example:3128";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::GzipIndexes "true";\n'
        'DPkg::Post-Invoke:: "rm -rf /";\n'
    )
    assert options == (
        'Acquire::http::Proxy "http://me:secret@proxy.example:3128";',
        'Acquire::Check-Valid-Until "false";',
    )
    assert AptSettings((), options).date_options == ('Acquire::Check-Valid-Until "false";',)
