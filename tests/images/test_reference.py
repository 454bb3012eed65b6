"""Names of images: what they stand for, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aenv.errors import InvalidRequest
from aenv.images.reference import Reference, checked_registry, is_loopback, parse

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("library/debian", "docker.io/library/debian:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("index.docker.io/org/app", "docker.io/org/app:latest"),
        ("registry-1.docker.io/debian", "docker.io/library/debian:latest"),
        ("org/app:v1.2-rc_3", "docker.io/org/app:v1.2-rc_3"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}"),
        (f"debian:12@{DIGEST}", f"docker.io/library/debian:12@{DIGEST}"),
        ("quay.io/org/sub/app", "quay.io/org/sub/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("registry:5000/app:1", "registry:5000/app:1"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("[fd00::1]/app", "[fd00::1]/app:latest"),
        ("Host/app", "Host/app:latest"),
        ("gcr.io/my-project/a__b--c.d", "gcr.io/my-project/a__b--c.d:latest"),
    ],
)
def test_a_name_is_completed(text: str, full: str) -> None:
    (found,) = parse(text)
    assert str(found) == full


def test_a_digest_decides_over_a_tag() -> None:
    (found,) = parse(f"debian:12@{DIGEST}")
    assert found.wanted == DIGEST
    assert parse("debian:12")[0].wanted == "12"


def test_names_without_a_host_are_looked_for_in_every_registry() -> None:
    registries = ("localhost:5000", "docker.io", "mirror.example/hub/library")
    assert [str(each) for each in parse("app:1", registries)] == [
        "localhost:5000/app:1",
        "docker.io/library/app:1",
        "mirror.example/hub/library/app:1",
    ]
    assert len(parse("quay.io/app", registries)) == 1


def test_there_may_be_no_registry_for_names_without_a_host() -> None:
    with pytest.raises(InvalidRequest, match="no registry is set for such names"):
        parse("debian", ())
    assert parse("quay.io/app", ())


def test_docker_hub_is_served_by_another_host() -> None:
    assert parse("debian")[0].host == "registry-1.docker.io"
    assert parse("quay.io/org/app")[0].host == "quay.io"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" debian", "blanks"),
        ("de bian", "letters and digits"),
        ("debian\n", "blanks"),
        ("https://quay.io/app", "leave out"),
        ("Debian", "lower case"),
        ("quay.io/Org/app", "lower case"),
        ("debian:", "a tag has"),
        ("debian:-1", "a tag has"),
        ("debian:" + "x" * 129, "a tag has"),
        ("debian@sha256:12", "a digest is"),
        ("debian@", "a digest is"),
        ("debian@md5:" + "0" * 32, "a digest is"),
        ("a//b", "letters and digits"),
        ("/debian", "letters and digits"),
        ("quay.io/", "letters and digits"),
        ("a..b", "letters and digits"),
        ("a___b", "letters and digits"),
        ("quay.io/../etc", "letters and digits"),
        ("bad_host.io/app", "not a host"),
        ("host:99999/app", "not a host"),
        ("host:0/app", "not a host"),
        ("0123456789abcdef" * 4, "64 hexadecimal"),
        ("quay.io/" + "a" * 250, "longer than"),
        ("ünïcode", "letters and digits"),
    ],
)
def test_what_is_no_name_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse(text)


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse("a" * 100_000 + "!")
    assert len(refused.value.message) < 500


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60) | st.text("abcAB01.:/@-_[]", max_size=60))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        (found,) = parse(text)
    except InvalidRequest:
        return
    assert isinstance(found, Reference)
    assert parse(str(found)) == (found,)


@pytest.mark.parametrize("name", ["docker.io", "localhost:5000", "quay.io/org/sub", "[::1]:5000"])
def test_registries_of_the_settings(name: str) -> None:
    assert checked_registry(name) == name


@pytest.mark.parametrize("name", ["", "https://quay.io", "quay.io/Org", "a b", "quay.io/", "x:y"])
def test_what_is_no_registry(name: str) -> None:
    with pytest.raises(ValueError, match="not a registry"):
        checked_registry(name)


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost:5000", True),
        ("registry.localhost", True),
        ("127.1.2.3", True),
        ("[::1]:80", True),
        ("10.0.0.1:5000", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_what_is_on_this_machine(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
