"""Dockerfiles become steps, or are refused with the line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from aenv.cli.dockerfile import DOCKER_OWNER, Copied, Recipe, read
from aenv.cli.errors import CommandError

SH = ["/bin/sh", "-c"]


def recipe(text: str, arguments: Mapping[str, str] | None = None, target: str | None = None) -> Recipe:
    return read(text, arguments=arguments or {}, target=target)


def steps(text: str, **arguments: str) -> list[Any]:
    """The steps after `FROM x`, each as its kind and arguments, or what is copied."""
    found = recipe(f"FROM x\n{text}\n", arguments)
    assert found.image == "x"
    return [
        each.copied if each.wire is None else [each.wire["type"], *each.wire["args"]] for each in found.steps
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RUN a && b", ["RUN", "a && b"]),
        ("RUN a \\\n  b", ["RUN", "a   b"]),
        ('RUN ["a b", "$c"]', ["RUN", "exec 'a b' '$c'"]),
        ("RUN <<EOF\na\nb\nEOF", ["RUN", "a\nb\n"]),
        ("RUN cat <<'X' > /f\n$a\nX", ["RUN", "cat <<'X' > /f\n$a\nX\n"]),
        ('ENV A=1 B="x y"', ["ENV", "A", "1", "B", "x y"]),
        ("ENV A b c", ["ENV", "A", "b c"]),
        ("ENV P=/x:$PATH", ["ENV", "P", "/x:$PATH"]),
        ("ENV P='$PATH' Q=\\$PATH", ["ENV", "P", "\\$PATH", "Q", "\\$PATH"]),
        ("ENV P='a\\b'", ["ENV", "P", "a\\\\b"]),
        ("WORKDIR /a/$B", ["WORKDIR", "/a/$B"]),
        ("USER me:us", ["USER", "me:us"]),
        ("ARG A=1", ["ARG", "A", "1"]),
        ("ARG TARGETARCH", ["ARG", "TARGETARCH", "amd64"]),
    ],
)
def test_one_step(text: str, expected: list[str]) -> None:
    assert steps(text) == [expected]


def test_a_script_of_its_own_is_run_as_a_file() -> None:
    ((kind, command),) = steps("RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF")
    assert kind == "RUN"
    assert "#!/usr/bin/env python3\nprint(1)\n" in command
    assert 'chmod +x "$t"; "$t"' in command


def test_shell() -> None:
    found = recipe('FROM x\nRUN a\nSHELL ["/bin/bash", "-ec"]\nRUN b\nRUN ["c"]\n')
    assert [each.wire and each.wire["shell"] for each in found.steps] == [SH, ["/bin/bash", "-ec"], SH]
    assert [each.line for each in found.steps] == [2, 4, 5]


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("COPY a b /c/", Copied(["a", "b"], "/c/", DOCKER_OWNER, "")),
        ('COPY ["a b", "$c"]', Copied(["a b"], "$c", DOCKER_OWNER, "")),
        ("COPY --chown=1:2 --chmod=755 --link a /c", Copied(["a"], "/c", "1:2", "755")),
        ("COPY --exclude=*.md . .", Copied(["."], ".", DOCKER_OWNER, "", ("*.md",))),
        ("ADD a $HOME/", Copied(["a"], "$HOME/", DOCKER_OWNER, "")),
        ("COPY <<EOF /c\nx\nEOF", Copied([], "/c", DOCKER_OWNER, "", (), {"EOF": "x\n"})),
        ("COPY <<EOF /c\n'$A' \\$B 5$\nEOF", Copied([], "/c", DOCKER_OWNER, "", (), {"EOF": "'1' $B 5$\n"})),
    ],
)
def test_copies(text: str, copied: Copied) -> None:
    assert steps(f"ENV A=1\n{text}")[1:] == [copied]


def test_arguments() -> None:
    assert steps("ARG V\nARG W=w\nCOPY $V-$W /c", V="1") == [
        ["ARG", "V", "1"],
        ["ARG", "W", "w"],
        Copied(["1-w"], "/c", DOCKER_OWNER, ""),
    ]
    found = recipe("ARG V=1\nARG W=$V.2\nFROM i:$W\nARG V\n", {"V": "3", "Z": ""})
    assert found.image == "i:3.2"
    assert [each.wire and each.wire["args"] for each in found.steps] == [["V", "3"]]
    assert found.warnings == ["--build-arg Z isn't declared by an ARG"]


def test_stages() -> None:
    text = "FROM a AS One\nRUN 1\nCMD c\nFROM other\nRUN 2\nFROM one AS last\nRUN 3\n"
    assert [each.line for each in recipe(text).steps] == [2, 7]
    assert recipe(text).image == "a"
    assert [each.line for each in recipe(text, target="ONE").steps] == [2]
    assert recipe(text, target="1").image == "other"
    with pytest.raises(CommandError, match="no stage 'two'"):
        recipe(text, target="two")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("CMD a b", "a b"),
        ('CMD ["a", "b c"]', "a 'b c'"),
        ('ENTRYPOINT ["a"]\nCMD ["b"]', "a b"),
        ("CMD b\nENTRYPOINT a", "a"),
        ("EXPOSE 80\nLABEL a=b", None),
    ],
)
def test_what_runs(text: str, command: str | None) -> None:
    assert recipe(f"FROM x\n{text}").start_command == command


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RUN a", "line 1: a Dockerfile begins with FROM"),
        ("FROM scratch", "line 1: FROM scratch"),
        ("FROM x\n\nCOPY --from=y a b", "line 3: COPY --from"),
        ("FROM x\nRUN --mount=type=secret,id=a b", "line 2: RUN --mount=type=secret,id=a"),
        ("FROM x\nONBUILD RUN a", "line 2: ONBUILD"),
        ("FROM x\nADD http://h/f /f", "line 2: ADD from an address"),
        ("FROM x\nADD a.tar.gz /f", "line 2: ADD doesn't unpack"),
        ("FROM x\nCOPY a b c", "line 2: a destination of several"),
        ("FROM x\nCOPY $HOME/a b", "line 2: the value of"),
        ("FROM x\nCOPY <<E /b\n${HOME}\nE", "line 2: the value of"),
        ("FROM x\nCOPY --chmod=u+x a b", "line 2: COPY --chmod=u\\+x"),
        ("FROM x\nSHELL bash", "line 2: SHELL takes a list"),
        ("FROM x\nENV A", "line 2: ENV must have two"),
        ("", "no FROM|no instructions|empty"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        recipe(text)


def test_what_has_no_effect_is_told() -> None:
    found = recipe("FROM x\nVOLUME /a\nRUN --mount=type=cache,target=/c a\n")
    assert found.warnings == [
        "line 2: VOLUME has no effect",
        "line 3: the cache of --mount=type=cache,target=/c is always empty",
    ]
