"""The folder that a Dockerfile's COPY takes its files from, without what `.dockerignore` names."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2b_dockerfile_utils import PatternMatcher

from aenv.cli.archives import Member, Upload, upload_of_members
from aenv.cli.dockerfile import Copied
from aenv.cli.errors import CommandError


class BuildContext:
    """A folder; `scratch` is an empty one for what stands in the Dockerfile itself. All of it is blocking."""

    def __init__(self, folder: Path, dockerfile: Path, scratch: Path) -> None:
        """Raises CommandError for a `.dockerignore` that can't be understood."""
        self._folder = folder.resolve()
        self._scratch = scratch
        self._ignored = _matcher(_ignore_file(folder, dockerfile))

    def upload(self, copied: Copied, number: int) -> tuple[Upload, str, str]:
        """The files of a COPY, and the step's source and destination. Raises CommandError, OSError."""
        excluded = _matcher_of(copied.excluded, "--exclude")
        members: dict[str, Member] = {}
        found = [path for source in copied.sources for path in self._matches(source)]
        is_one_file = len(found) + len(copied.texts) == 1 and not any(path.is_dir() for path in found)
        for path in found:
            for member in self._members(path):
                if not excluded.matches(member.name):
                    members[member.name] = member
        for name, text in copied.texts.items():
            path = self._scratch / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o644)
            if (written := Member.of(path, name)) is not None:
                members[name] = written
        if not members and (empty := Member.of(self._folder, ".")) is not None:
            members["."] = empty
        chosen = [members[name] for name in sorted(members)]
        name = chosen[0].name
        source = name if is_one_file and not copied.destination.endswith("/") else "."
        return upload_of_members(chosen, f"COPY {source} "), source, copied.destination

    def _matches(self, source: str) -> Sequence[Path]:
        """What a source names, perhaps as a pattern. Raises CommandError if that is nothing."""
        inside = source.lstrip("/") or "."
        parts = Path(inside).parts
        if ".." in parts:
            raise CommandError(f"COPY {source}: it leads out of the build's folder")
        if not set(inside) & set("*?["):
            path = (self._folder / inside).resolve()
            found = [path] if path.exists() and path.is_relative_to(self._folder) else []
        else:
            found = sorted(self._folder.glob(inside.removeprefix("./")))
        seen = [path for path in found if path == self._folder or not self._is_ignored(path)]
        if not seen:
            raise CommandError(
                f"COPY {source}: there is no such file in the build's folder, or it is ignored"
            )
        return seen

    def _is_ignored(self, path: Path) -> bool:
        name = path.relative_to(self._folder).as_posix()
        if not self._ignored.matches(name):
            return False
        return not (path.is_dir() and self._ignored.may_match_under(name))

    def _members(self, path: Path) -> Iterator[Member]:
        """A file by its name; what is in a folder, by names relative to that."""
        if not path.is_dir() or (path.is_symlink() and path != self._folder):
            if (member := Member.of(path, path.name)) is not None:
                yield member
            return
        yield from self._below(path, "")

    def _below(self, folder: Path, prefix: str) -> Iterator[Member]:
        for path in sorted(folder.iterdir()):
            member = Member.of(path, prefix + path.name)
            if member is None or self._is_ignored(path):
                continue
            is_folder = stat.S_ISDIR(member.status.st_mode)
            inner = [*self._below(path, f"{prefix}{path.name}/")] if is_folder else []
            if inner or not self._ignored.matches(path.relative_to(self._folder).as_posix()):
                yield member
                yield from inner


def _ignore_file(folder: Path, dockerfile: Path) -> Path:
    """One beside the Dockerfile that is called after it goes before the folder's own."""
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    return own if own.exists() else folder / ".dockerignore"


def _matcher(path: Path) -> PatternMatcher:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        lines = []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return _matcher_of(patterns, path.name)


def _matcher_of(patterns: Sequence[str], where: str) -> PatternMatcher:
    try:
        return PatternMatcher([_relative(pattern) for pattern in patterns])
    except ValueError as error:
        raise CommandError(f"{where}: {error}") from error


def _relative(pattern: str) -> str:
    """A pattern without the slash that it may begin with: all are of the build's folder."""
    exception = "!" if pattern.startswith("!") else ""
    return exception + pattern.removeprefix("!").strip().lstrip("/")
