"""The steps of a template build: what they are, what they change of the context, by what they are cached."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aenv.errors import InvalidRequest
from aenv.snapshots.disk_cache import key_over
from aenv.templates.context import Context

MOST_STEPS = 500
"""In one build."""

_KINDS = ("RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER")
_HASH = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{3,5}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?")


@dataclass(frozen=True)
class Run:
    """A command line, as the context's user or another."""

    command: str
    user: str | None
    shell: tuple[str, ...] = ()
    """What the line is for, with its options; empty for the shell that the image has."""

    def __str__(self) -> str:
        return f"RUN {self.command}"


@dataclass(frozen=True)
class Copy:
    """Files of an uploaded archive."""

    source: str
    destination: str
    owner: str | None
    mode: str | None
    files_hash: str

    def __str__(self) -> str:
        return f"COPY {self.source} {self.destination}"


@dataclass(frozen=True)
class Env:
    """Variables; `kept` in the template, or for the time of the build alone (ARG)."""

    pairs: tuple[tuple[str, str], ...]
    kept: bool

    def __str__(self) -> str:
        names = " ".join(name for name, _ in self.pairs)
        return f"{'ENV' if self.kept else 'ARG'} {names}"


@dataclass(frozen=True)
class Workdir:
    """The working directory, made if it is missing."""

    path: str

    def __str__(self) -> str:
        return f"WORKDIR {self.path}"


@dataclass(frozen=True)
class User:
    """Who acts from now on; an account is made if it is missing."""

    name: str

    def __str__(self) -> str:
        return f"USER {self.name}"


Action = Run | Copy | Env | Workdir | User


@dataclass(frozen=True)
class Step:
    """One step as it was asked for. With `force` it and all that follow are done though they are cached."""

    action: Action
    force: bool = False

    def after(self, context: Context) -> Context:
        """The context of the next step."""
        match self.action:
            case Env(pairs, kept):
                return context.with_env(dict(pairs)) if kept else context.with_arguments(dict(pairs))
            case Workdir(path):
                return dataclasses.replace(context, workdir=context.path(path).rstrip("/") or "/")
            case User(name):
                return dataclasses.replace(context, user=checked_user(context.expand(name)))
        return context

    @property
    def changes_disk(self) -> bool:
        """Whether there is anything to do in a VM."""
        return not isinstance(self.action, Env)

    def key(self, parent: str, context: Context) -> str:
        """By what its result is found: what was there before, what it does, what it sees."""
        match self.action:
            case Copy(source, destination, owner, mode, files_hash):
                where = (source, context.path(destination), owner or context.user, mode or "")
                return key_over(parent, "COPY", *where, files_hash)
            case Run(command, user, shell):
                return key_over(parent, "RUN", command, user or "", context.key(), *shell)
        after = self.after(context)
        return key_over(parent, type(self.action).__name__, after.user, after.workdir or "")


def parse(
    kind: str, args: Sequence[str], files_hash: str | None, *, force: bool, shell: Sequence[str] = ()
) -> Step:
    """The step of a request. Raises InvalidRequest for what can't be one."""
    name = kind.upper()
    if name not in _KINDS:
        raise InvalidRequest(f"{kind!r} is no step that is supported: these are {', '.join(_KINDS)}")
    if any("\0" in text for text in (*args, *shell)):
        raise InvalidRequest(f"{name}: NUL characters aren't allowed")
    action = _action(name, args, files_hash)
    if isinstance(action, Run):
        action = dataclasses.replace(action, shell=tuple(shell))
    elif shell:
        raise InvalidRequest(f"{name}: a shell is for RUN")
    return Step(action, force)


def _action(name: str, args: Sequence[str], files_hash: str | None) -> Action:
    match name, len(args):
        case "RUN", 1 | 2 if args[0].strip():
            return Run(args[0], checked_user(args[1]) if len(args) == 2 and args[1] else None)
        case "COPY" | "ADD", 2 | 3 | 4 if args[0] and args[1]:
            return _copy([*args, "", ""], files_hash)
        case "ENV" | "ARG", count if count and count % 2 == 0:
            return Env(_pairs(name, args), kept=name == "ENV")
        case "WORKDIR", 1 if args[0]:
            return Workdir(args[0])
        case "USER", 1 if args[0]:
            return User(args[0] if "$" in args[0] else checked_user(args[0]))
    raise InvalidRequest(f"{name} can't have these {len(args)} arguments")


def _pairs(name: str, args: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if wrong := [each for each in args[::2] if not _NAME.fullmatch(each)]:
        raise InvalidRequest(f"{name}: {wrong[0]!r} can't be the name of a variable")
    return tuple(zip(args[::2], args[1::2], strict=True))


def _copy(args: Sequence[str], files_hash: str | None) -> Copy:
    source, destination, owner, mode, *_ = args
    if mode and not _MODE.fullmatch(mode):
        raise InvalidRequest(f"COPY: {mode!r} is not an octal mode")
    return Copy(
        source,
        destination,
        checked_user(owner) if owner else None,
        mode or None,
        checked_hash(files_hash or ""),
    )


def checked_user(name: str) -> str:
    """A user, perhaps with a group behind a colon, by name or number. Raises InvalidRequest."""
    if not _USER.fullmatch(name):
        raise InvalidRequest(f"{name!r} can't be a user, nor a user and a group")
    return name


def checked_hash(text: str) -> str:
    """The hash by which a client names an archive. Raises InvalidRequest."""
    if not _HASH.fullmatch(text):
        raise InvalidRequest("filesHash: 64 lower-case hex digits are needed")
    return text
