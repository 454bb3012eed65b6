"""Steps and their context: what is taken, what they change, by what they are cached."""

from __future__ import annotations

import dataclasses

import pytest

from aenv.errors import InvalidRequest
from aenv.templates.context import DEFAULT_PATH, Context
from aenv.templates.steps import Copy, Env, Run, Step, User, Workdir, parse

HASH = "0" * 64


@pytest.mark.parametrize(
    ("kind", "args", "files_hash", "action"),
    [
        ("RUN", ["make"], None, Run("make", None)),
        ("run", ["make", ""], None, Run("make", None)),
        ("RUN", ["make", "root"], None, Run("make", "root")),
        ("COPY", ["a", "/b"], HASH, Copy("a", "/b", None, None, HASH)),
        ("COPY", ["a", "/b", "", ""], HASH, Copy("a", "/b", None, None, HASH)),
        ("COPY", ["a", "/b", "u:g", "0755"], HASH, Copy("a", "/b", "u:g", "0755", HASH)),
        ("ADD", ["a", "/b"], HASH, Copy("a", "/b", None, None, HASH)),
        ("ENV", ["A", "1", "B", ""], None, Env((("A", "1"), ("B", "")), kept=True)),
        ("ARG", ["A", "1"], None, Env((("A", "1"),), kept=False)),
        ("WORKDIR", ["a b"], None, Workdir("a b")),
        ("USER", ["$NAME"], None, User("$NAME")),
        ("USER", ["1000:0"], None, User("1000:0")),
    ],
)
def test_what_is_taken(kind: str, args: list[str], files_hash: str | None, action: object) -> None:
    assert parse(kind, args, files_hash, force=True) == Step(action, force=True)  # type: ignore[arg-type]


def test_a_line_may_be_for_another_shell() -> None:
    step = parse("RUN", ["make"], None, force=False, shell=["/bin/sh", "-ec"])  # noqa: S604 (no process)
    assert step.action == Run("make", None, ("/bin/sh", "-ec"))
    assert step.key("", Context()) != parse("RUN", ["make"], None, force=False).key("", Context())
    with pytest.raises(InvalidRequest, match="a shell is for RUN"):
        parse("USER", ["me"], None, force=False, shell=["/bin/sh"])  # noqa: S604 (no process)


@pytest.mark.parametrize(
    ("kind", "args", "files_hash", "word"),
    [
        ("SHELL", ["x"], None, "no step that is supported"),
        ("RUN", [], None, "these 0 arguments"),
        ("RUN", [" "], None, "arguments"),
        ("RUN", ["a", "b", "c"], None, "these 3 arguments"),
        ("RUN", ["a", "b c"], None, "can't be a user"),
        ("RUN", ["a\0b"], None, "NUL"),
        ("COPY", ["a", "/b"], None, "filesHash"),
        ("COPY", ["a", "/b"], "0" * 63, "filesHash"),
        ("COPY", ["a", ""], HASH, "arguments"),
        ("COPY", ["a", "/b", "", "0888"], HASH, "octal"),
        ("ENV", ["A"], None, "arguments"),
        ("ENV", ["A-B", "1"], None, "'A-B'"),
        ("WORKDIR", [""], None, "arguments"),
        ("USER", ["a:b:c"], None, "can't be a user"),
    ],
)
def test_what_is_refused(kind: str, args: list[str], files_hash: str | None, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        parse(kind, args, files_hash, force=False)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$A/${A}x", "1/1x"),
        ("$AB$NO", ""),
        (r"\$A \\ \x", r"$A \ \x"),
        ("${NO:-2} ${A:-2} ${EMPTY:-3} ${EMPTY-3}", "2 1 3 "),
        ("${A:+yes}${NO:+no}", "yes"),
        ("${NO:-$A}", "1"),
        ("/opt:$PATH", f"/opt:{DEFAULT_PATH}"),
        ("$HOME $USER", "/home/bob bob"),
        ("5$ $ ${", "5$ $ ${"),
        ('say "$A"', 'say "1"'),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert Context({"A": "1", "EMPTY": ""}, user="bob:staff").expand(text) == expanded


def test_variables_see_those_before() -> None:
    context = Context().with_arguments({"VERSION": "1"}).with_env({"A": "$VERSION", "B": "$A"})
    assert context.variables == {"VERSION": "1", "A": "1", "B": ""}
    assert context.with_env({"VERSION": "2"}).variables["VERSION"] == "2"
    assert context.with_env({"B": "$A$A"}).env == {"A": "1", "B": "11"}


@pytest.mark.parametrize(
    ("workdir", "text", "path"),
    [
        (None, "app", "/home/user/app"),
        ("/srv", "app", "/srv/app"),
        ("/srv", "../x", "/x"),
        ("/srv", "/a/../b/", "/b/"),
        ("/srv", ".", "/srv/"),
        ("/srv", "//x", "/x"),
        ("/srv", "/", "/"),
        ("/srv", "$HOME/x", "/home/user/x"),
    ],
)
def test_paths(workdir: str | None, text: str, path: str) -> None:
    assert Context(workdir=workdir).path(text) == path


def test_what_steps_change() -> None:
    before = Context({"DIR": "sub"}, workdir="/srv")
    assert Step(Workdir("$DIR")).after(before).workdir == "/srv/sub"
    assert Step(Workdir("/")).after(before).workdir == "/"
    assert Step(User("$DIR")).after(before).user == "sub"
    assert Step(Run("x", "root")).after(before) == before
    with pytest.raises(InvalidRequest):
        Step(User("$NO")).after(before)


def test_a_key_follows_what_a_step_does_and_sees() -> None:
    context = Context()
    run = Step(Run("make", None))
    keys = {
        run.key("p", context),
        run.key("q", context),
        Step(Run("make", "root")).key("p", context),
        run.key("p", dataclasses.replace(context, user="bob")),
        run.key("p", dataclasses.replace(context, workdir="/x")),
        run.key("p", context.with_env({"A": "1"})),
        run.key("p", context.with_arguments({"A": "1"})),
        Step(Copy("a", "b", None, None, HASH)).key("p", context),
        Step(Copy("a", "b", None, None, "1" * 64)).key("p", context),
        Step(Copy("a", "b", "root", None, HASH)).key("p", context),
        Step(Copy("a", "b", None, "0755", HASH)).key("p", context),
        Step(Copy("a", "b/", None, None, HASH)).key("p", context),
        Step(Workdir("x")).key("p", context),
        Step(User("x")).key("p", context),
    }
    assert len(keys) == 14
    # Files don't depend on variables: a new one must not copy them anew.
    copy = Step(Copy("a", "/b", None, None, HASH))
    assert copy.key("p", context) == copy.key("p", context.with_env({"A": "1"}))
    assert run.key("p", context) == Step(Run("make", None), force=True).key("p", context)
