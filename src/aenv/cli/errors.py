"""How a failure reaches the user: one line that says what, and lines that say what to do."""

from __future__ import annotations

import sys

from aenv.errors import AenvError


class CommandError(Exception):
    """Ends the command with `error: message`, the hint, and `exit_code`."""

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class ApiError(AenvError):
    """The server answered with an error."""

    def __init__(self, status: int, message: str, *, path: str) -> None:
        super().__init__(message)
        self.status = status
        self.path = path


class UnreachableError(AenvError):
    """No server answers at the URL."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"can't reach the server at {url}: {reason}")


def usage(message: str, *, hint: str | None = None) -> CommandError:
    """A failure of the arguments: exit code 2."""
    return CommandError(message, hint=hint, exit_code=2)


def failure_of(error: AenvError) -> CommandError:
    """The failure to show for `error`, with what usually helps."""
    return CommandError(" ".join(error.message.split()), hint=_hint(error))


def report(failure: CommandError) -> None:
    """Print a failure to standard error."""
    say(f"error: {failure.message}")
    if failure.hint:
        say(failure.hint)


def say(line: str) -> None:
    """Print a line for a person to standard error, so that standard output stays data."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """`text` with its control characters replaced: names that a sandbox chose could steer the terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _hint(error: AenvError) -> str | None:
    if isinstance(error, UnreachableError):
        return "Start one with `aenv server`, or name another with --api-url or E2B_API_URL."
    if not isinstance(error, ApiError):
        return None
    if error.status == 404 and "/sandboxes/" in error.path:
        return "`aenv ls` shows the sandboxes there are."
    return _HINTS.get(error.status)


_HINTS = {
    401: "Set E2B_API_KEY, or store URL and key with `aenv auth`.",
    404: "`aenv template ls` and `aenv snapshot ls` show what can be started.",
    429: "The server is busy; try again in a moment.",
    503: "The server is busy; try again in a moment.",
}
