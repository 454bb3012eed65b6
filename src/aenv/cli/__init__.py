"""The command `aenv`."""

from __future__ import annotations

from aenv.cli.app import app
from aenv.cli.errors import CommandError, report


def main() -> None:
    """Run the command line; exits with 0, 1 for a failure, 2 for wrong usage, or `exec`'s command's code."""
    try:
        app(prog_name="aenv")
    except CommandError as failure:
        report(failure)
        code = failure.exit_code
    except KeyboardInterrupt:
        code = 130
    else:
        code = 0
    raise SystemExit(code)
