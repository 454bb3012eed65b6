"""The command `aenv`."""

from __future__ import annotations

import os
import sys

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
    except BrokenPipeError:
        # Whoever read our output is gone. Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    else:
        code = 0
    raise SystemExit(code)
