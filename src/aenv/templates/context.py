"""What the steps of a build see: environment, user and working directory."""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_USER = "user"
"""Who acts in a template that says nothing else, as in E2B."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH where nothing sets one: the agent's own default."""

_REFERENCE = re.compile(
    r"\\(?P<escaped>[$\\])|\$(?P<name>[A-Za-z_]\w*)"
    r"|\$\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?[-+])(?P<word>[^}]*))?\}"
)


@dataclass(frozen=True)
class Context:
    """The state that ENV, ARG, USER and WORKDIR change. `workdir` None is the user's home."""

    env: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    """As `env`, but only while the template is built."""
    user: str = DEFAULT_USER
    workdir: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a process of a step gets; the environment wins over arguments, as in Docker."""
        return {**self.arguments, **self.env}

    def expand(self, text: str) -> str:
        r"""`text` with `$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}` replaced; `\$` is a dollar.

        What isn't set is empty, and anything else stands for itself.
        """
        known = {"PATH": DEFAULT_PATH, "HOME": self.home, "USER": self.account, **self.variables}

        def value(found: re.Match[str]) -> str:
            if found["escaped"] is not None:
                return found["escaped"]
            given = known.get(found["name"] or found["braced"])
            operator = found["operator"] or ""
            is_set = given is not None and (given != "" or not operator.startswith(":"))
            if operator.endswith("-") and not is_set:
                return self.expand(found["word"])
            if operator.endswith("+"):
                return self.expand(found["word"]) if is_set else ""
            return given or ""

        return _REFERENCE.sub(value, text)

    @property
    def account(self) -> str:
        """The user without a group."""
        return self.user.partition(":")[0]

    @property
    def home(self) -> str:
        """Where the user's home is likely to be."""
        return "/root" if self.account in {"root", "0"} else f"/home/{self.account}"

    def path(self, text: str) -> str:
        """`text`, expanded, as an absolute path; a slash at its end stays."""
        expanded = self.expand(text)
        absolute = posixpath.normpath(posixpath.join("/", self.workdir or self.home, expanded))
        absolute = "/" + absolute.lstrip("/")
        is_folder = expanded.endswith(("/", "/.")) or expanded == "."
        return absolute + "/" if is_folder and absolute != "/" else absolute

    def with_env(self, pairs: Mapping[str, str]) -> Context:
        """With variables added, whose values are expanded by those of before."""
        new = {name: self.expand(value) for name, value in pairs.items()}
        return dataclasses.replace(self, env={**self.env, **new})

    def with_arguments(self, pairs: Mapping[str, str]) -> Context:
        """With build arguments added, expanded likewise."""
        new = {name: self.expand(value) for name, value in pairs.items()}
        return dataclasses.replace(self, arguments={**self.arguments, **new})

    def key(self) -> str:
        """The same for equal contexts only."""
        parts = (sorted(self.env.items()), sorted(self.arguments.items()), self.user, self.workdir)
        return json.dumps(parts)
