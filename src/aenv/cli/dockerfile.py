"""Dockerfiles as recipes of builds: which steps of the API they come to.

The language is parsed by a port of BuildKit's parser. What only the server knows, such as the variables of an
image, is left in for the server to replace; what a build can't do is refused with its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from e2b_dockerfile_utils import (
    DockerfileInstruction,
    DockerfileSyntaxError,
    chomp_heredoc_content,
    parse_dockerfile_ast,
)

from aenv.cli.dockerfile_words import Words, literal, refused
from aenv.cli.errors import CommandError

DEFAULT_SHELL: Final = ("/bin/sh", "-c")
DOCKER_OWNER: Final = "0:0"
"""Whose files are that COPY makes, whoever the user is."""

PLATFORM_ARGUMENTS: Final = {
    "TARGETPLATFORM": "linux/amd64",
    "TARGETOS": "linux",
    "TARGETARCH": "amd64",
    "TARGETVARIANT": "",
    "BUILDPLATFORM": "linux/amd64",
    "BUILDOS": "linux",
    "BUILDARCH": "amd64",
    "BUILDVARIANT": "",
}
"""Known without a value where they are declared, as in BuildKit."""

_WITHOUT_EFFECT = {"LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL"}
_IGNORED = {"HEALTHCHECK", "VOLUME"}
_MODE = re.compile(r"[0-7]{3,5}")


@dataclass(frozen=True)
class Copied:
    """The files of a COPY: `sources` in the context, or `text` that stands in the Dockerfile itself."""

    sources: Sequence[str]
    destination: str
    owner: str
    mode: str
    excluded: Sequence[str] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Contents by file name."""


@dataclass(frozen=True)
class Instruction:
    """One step, and the line from which it comes. `wire` is the API's; a COPY gets it with its files."""

    line: int
    wire: Mapping[str, Any] | None = None
    copied: Copied | None = None


@dataclass(frozen=True)
class Recipe:
    """What a Dockerfile says."""

    image: str
    steps: Sequence[Instruction]
    start_command: str | None
    warnings: Sequence[str]


@dataclass
class _Stage:
    """What is known within a stage."""

    name: str
    image: str
    steps: list[Instruction] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    """Variables whose values are known here."""
    shell: Sequence[str] = DEFAULT_SHELL
    command: str | None = None
    entrypoint: str | None = None


@dataclass
class _CopyFlags:
    """The flags of a COPY."""

    owner: str = DOCKER_OWNER
    mode: str = ""
    excluded: list[str] = field(default_factory=list)


def read(text: str, *, arguments: Mapping[str, str], target: str | None) -> Recipe:
    """The recipe of a Dockerfile with these build arguments, up to the stage `target` or to its end.

    Raises CommandError, with a line, for what is wrong or can't be done.
    """
    try:
        ast = parse_dockerfile_ast(text)
    except DockerfileSyntaxError as error:
        raise CommandError(str(error)) from error
    reader = _Reader(ast.escape_token, arguments)
    for instruction in ast.instructions:
        if instruction.name == "FROM" and reader.is_at(target):
            break
        reader.take(instruction)
    if target is not None and not reader.is_at(target):
        raise CommandError(f"there is no stage {target!r} in the Dockerfile")
    recipe = reader.recipe()
    unknown = [name for name in arguments if name not in reader.declared]
    unused = [f"--build-arg {name} isn't declared by an ARG" for name in unknown]
    warnings = [*(f"line {each.line}: {each.message}" for each in ast.warnings), *recipe.warnings, *unused]
    return Recipe(recipe.image, recipe.steps, recipe.start_command, warnings)


class _Reader:
    """Takes instructions one by one."""

    def __init__(self, escape: str, arguments: Mapping[str, str]) -> None:
        self.declared: set[str] = set()
        self._words = Words(escape)
        self._arguments = arguments
        self._globals: dict[str, str] = {}
        self._stages: list[_Stage] = []
        self._warnings: list[str] = []
        self._takers: dict[str, Callable[[DockerfileInstruction, _Stage], None]] = {
            "ADD": self._copy,
            "ARG": self._arg,
            "CMD": self._cmd,
            "COPY": self._copy,
            "ENTRYPOINT": self._entrypoint,
            "ENV": self._env,
            "RUN": self._run,
            "SHELL": self._shell,
            "USER": self._user,
            "WORKDIR": self._workdir,
        }

    def is_at(self, target: str | None) -> bool:
        """Whether the stage that is being read is the one wanted."""
        if target is None or not self._stages:
            return False
        return target.lower() in {self._stages[-1].name, str(len(self._stages) - 1)}

    def take(self, instruction: DockerfileInstruction) -> None:
        """Take the next one."""
        name = instruction.name
        if name == "FROM":
            self._from(instruction)
        elif not self._stages and name == "ARG":
            self._global_arg(instruction)
        elif not self._stages:
            raise refused(instruction, "a Dockerfile begins with FROM")
        elif name in self._takers:
            self._takers[name](instruction, self._stages[-1])
        elif name in _IGNORED:
            self._warnings.append(f"line {instruction.start_line}: {name} has no effect")
        elif name not in _WITHOUT_EFFECT:
            raise refused(instruction, f"{name} isn't supported")

    def recipe(self) -> Recipe:
        """What was read. Raises CommandError if there was no FROM."""
        if not self._stages:
            raise CommandError("there is no FROM in the Dockerfile")
        stage = self._stages[-1]
        command = " ".join(filter(None, (stage.entrypoint, stage.command)))
        return Recipe(stage.image, stage.steps, command or None, self._warnings)

    # Stages and variables

    def _from(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            if not flag.startswith("--platform="):
                raise refused(instruction, f"{flag} isn't supported")
        match instruction.args:
            case [image]:
                name = ""
            case [image, word, name] if word.upper() == "AS":
                pass
            case _:
                raise refused(instruction, "FROM takes an image, and AS and a name")
        image = self._words.expanded(instruction, image, {**PLATFORM_ARGUMENTS, **self._globals})
        parent = next((stage for stage in self._stages if stage.name and stage.name == image.lower()), None)
        if image == "scratch":
            raise refused(instruction, "FROM scratch isn't supported: a template needs an image")
        if parent is None:
            self._stages.append(_Stage(name.lower(), image))
        else:
            known = dict(parent.known)
            stage = _Stage(name.lower(), parent.image, [*parent.steps], known, parent.shell)
            stage.command, stage.entrypoint = parent.command, parent.entrypoint
            self._stages.append(stage)

    def _global_arg(self, instruction: DockerfileInstruction) -> None:
        for word in instruction.args:
            name, equals, default = word.partition("=")
            self.declared.add(name)
            if name in self._arguments:
                self._globals[name] = self._arguments[name]
            elif equals:
                known = {**PLATFORM_ARGUMENTS, **self._globals}
                self._globals[name] = self._words.expanded(instruction, default, known)

    def _arg(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        for word in instruction.args:
            name, equals, default = word.partition("=")
            self.declared.add(name)
            given = self._arguments.get(name)
            if given is None and equals:
                self._step(instruction, stage, "ARG", name, self._words.for_server(instruction, default))
                stage.known.setdefault(name, self._words.as_known(instruction, default, stage.known))
                continue
            value = {**PLATFORM_ARGUMENTS, **self._globals}.get(name) if given is None else given
            if value is not None:
                self._step(instruction, stage, "ARG", name, literal(value))
                stage.known.setdefault(name, value)

    def _env(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        pairs: list[str] = []
        for name, value in zip(instruction.args[::3], instruction.args[1::3], strict=True):
            expanded = self._words.for_server(instruction, value)
            plain = self._words.as_known(instruction, name, {})
            pairs += (plain, expanded)
            stage.known[plain] = self._words.as_known(instruction, value, stage.known)
        self._step(instruction, stage, "ENV", *pairs)

    # What changes the disk

    def _run(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        for flag in instruction.flags:
            if not flag.startswith("--mount=") or "type=cache" not in flag.partition("=")[2].split(","):
                raise refused(instruction, f"RUN {flag} isn't supported")
            self._warnings.append(f"line {instruction.start_line}: the cache of {flag} is always empty")
        if not instruction.args:
            raise refused(instruction, "RUN needs a command")
        if instruction.json:
            wire = {
                "type": "RUN",
                "args": [f"exec {shlex.join(instruction.args)}"],
                "shell": [*DEFAULT_SHELL],
            }
        else:
            wire = {"type": "RUN", "args": [_script(instruction)], "shell": [*stage.shell]}
        stage.steps.append(Instruction(instruction.start_line, wire))

    def _copy(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        flags = self._copy_flags(instruction, stage)
        if len(instruction.args) < 2:
            raise refused(instruction, f"{instruction.name} takes sources and a destination")
        *sources, destination = instruction.args
        inner = {each.name: each for each in instruction.heredocs}
        texts: dict[str, str] = {}
        paths = []
        for source in sources:
            heredoc = inner.get(source.lstrip("<-").strip("'\"")) if source.startswith("<<") else None
            if heredoc is None:
                paths.append(
                    self._source(instruction, self._words.expanded(instruction, source, stage.known))
                )
            else:
                content = chomp_heredoc_content(heredoc.content) if heredoc.chomp else heredoc.content
                if heredoc.expand:
                    content = self._words.document(instruction, content, stage.known)
                texts[heredoc.name] = content
        target = self._words.for_server(instruction, destination)
        if len(sources) > 1 and not target.endswith("/"):
            raise refused(instruction, "a destination of several sources must end with a slash")
        copied = Copied(paths, target, flags.owner, flags.mode, tuple(flags.excluded), texts)
        stage.steps.append(Instruction(instruction.start_line, None, copied))

    def _copy_flags(self, instruction: DockerfileInstruction, stage: _Stage) -> _CopyFlags:
        found = _CopyFlags()
        for flag in instruction.flags:
            name, _, value = flag.partition("=")
            value = self._words.expanded(instruction, value, stage.known)
            match name:
                case "--chown" if value:
                    found.owner = value
                case "--chmod" if _MODE.fullmatch(value):
                    found.mode = value
                case "--exclude" if value:
                    found.excluded.append(value)
                case "--link":
                    pass
                case "--from":
                    raise refused(instruction, "COPY --from, another stage or image, isn't supported yet")
                case _:
                    raise refused(instruction, f"{instruction.name} {flag} isn't supported")
        return found

    def _source(self, instruction: DockerfileInstruction, source: str) -> str:
        if instruction.name == "ADD" and ("://" in source or source.startswith("git@")):
            raise refused(instruction, "ADD from an address isn't supported: use RUN with curl or git")
        if instruction.name == "ADD" and re.search(r"\.(tar|tgz|tbz2?|txz)(\.\w+)?$", source):
            raise refused(instruction, "ADD doesn't unpack archives here: use COPY, and RUN with tar")
        return source

    def _workdir(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        self._step(instruction, stage, "WORKDIR", self._single(instruction, stage))

    def _user(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        self._step(instruction, stage, "USER", self._single(instruction, stage))

    def _single(self, instruction: DockerfileInstruction, stage: _Stage) -> str:
        if not instruction.args:
            raise refused(instruction, f"{instruction.name} needs a value")
        return self._words.for_server(instruction, instruction.args[0])

    # What runs

    def _shell(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        if not instruction.json or not instruction.args:
            raise refused(instruction, 'SHELL takes a list, as in ["/bin/bash", "-c"]')
        stage.shell = tuple(instruction.args)

    def _cmd(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        stage.command = _command(instruction)

    def _entrypoint(self, instruction: DockerfileInstruction, stage: _Stage) -> None:
        stage.entrypoint, stage.command = _command(instruction), None

    def _step(self, instruction: DockerfileInstruction, stage: _Stage, kind: str, *args: str) -> None:
        if args:
            stage.steps.append(Instruction(instruction.start_line, {"type": kind, "args": [*args]}))


def _script(instruction: DockerfileInstruction) -> str:
    """The command line of a RUN in shell form, with its here-documents."""
    line = instruction.args[0]
    if not instruction.heredocs:
        return line
    first = instruction.heredocs[0]
    content = chomp_heredoc_content(first.content) if first.chomp else first.content
    if len(instruction.heredocs) == 1 and line.startswith("<<") and " " not in line.strip():
        if not content.startswith("#!"):
            return content
        mark = "EOF_OF_SCRIPT"
        body = f"cat > \"$t\" <<'{mark}'\n{content}{mark}\n"
        return f'set -e; t=$(mktemp)\n{body}chmod +x "$t"; "$t"; rm -f "$t"'
    documents = "".join(f"{each.content}{each.name}\n" for each in instruction.heredocs)
    return f"{line}\n{documents}"


def _command(instruction: DockerfileInstruction) -> str | None:
    if instruction.json:
        return shlex.join(instruction.args) or None
    return instruction.args[0] if instruction.args else None
