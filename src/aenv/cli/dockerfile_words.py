"""Words of a Dockerfile: their quotes taken off, and variables replaced, here or later by the server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from e2b_dockerfile_utils import DockerfileInstruction, ShellLex

from aenv.cli.errors import CommandError

_DOLLAR = "\ue000"
"""Stands for a dollar sign that is meant as one, while words are taken apart."""

_REFERENCE = re.compile(r"\$\w+|\$\{[^}]*\}?")


class Words:
    """Reads the words of one Dockerfile, which has this escape character. Raises CommandError with a line."""

    def __init__(self, escape: str) -> None:
        self._escape = escape

    def expanded(self, instruction: DockerfileInstruction, word: str, known: Mapping[str, str]) -> str:
        """A word for use here: every variable in it must be known."""
        value = self._lexed(instruction, _protected(word, self._escape), ShellLex(self._escape, env=known))
        return _all_known(instruction, value)

    def document(self, instruction: DockerfileInstruction, text: str, known: Mapping[str, str]) -> str:
        """A here-document, in which quotes mean nothing; every variable in it must be known."""
        protected = text.replace("\\$", _DOLLAR)
        value = self._lexed(instruction, protected, ShellLex("\\", env=known, skip_process_quotes=True))
        return _all_known(instruction, value)

    def as_known(self, instruction: DockerfileInstruction, word: str, known: Mapping[str, str]) -> str:
        """A value as far as it is known here: references to what isn't stay."""
        return self._lexed(instruction, word, ShellLex(self._escape, env=known))

    def for_server(self, instruction: DockerfileInstruction, word: str) -> str:
        """A word in which the server replaces the references: a dollar that is none is marked as such."""
        value = self._lexed(instruction, _protected(word, self._escape), ShellLex(self._escape))
        return value.replace("\\", "\\\\").replace(_DOLLAR, "\\$")

    def _lexed(self, instruction: DockerfileInstruction, word: str, lex: ShellLex) -> str:
        try:
            return lex.process_word(word)
        except ValueError as error:
            raise refused(instruction, str(error)) from error


def _all_known(instruction: DockerfileInstruction, value: str) -> str:
    if unknown := _REFERENCE.search(value):
        why = f"the value of {unknown[0]} isn't known here: those of ARG and ENV in the Dockerfile are"
        raise refused(instruction, why)
    return value.replace(_DOLLAR, "$")


def _protected(word: str, escape: str) -> str:
    """`word` with a sign of our own for each dollar that quotes or an escape make an ordinary one."""
    found, quote, position = "", "", 0
    while position < len(word):
        character = word[position]
        if character == escape and quote != "'" and word[position + 1 : position + 2] == "$":
            found += _DOLLAR
            position += 2
            continue
        if character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        found += _DOLLAR if character == "$" and quote == "'" else character
        position += 1
    return found


def literal(value: str) -> str:
    """A value in which nothing is to be replaced."""
    return value.replace("\\", "\\\\").replace("$", "\\$")


def refused(instruction: DockerfileInstruction, why: str) -> CommandError:
    """The error for an instruction that can't be taken."""
    return CommandError(f"Dockerfile, line {instruction.start_line}: {why}")
