"""The command `aenv`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aenv.cli.app import app
from aenv.cli.errors import CommandError, report


def main() -> None:
    """Run the command line; exits with 0, 1 for a failure, 2 for wrong usage, or `exec`'s command's code."""
    nowhere = Path(os.devnull)
    # A stream that the caller closed is None.
    sys.stdin = sys.stdin or nowhere.open()
    sys.stdout = sys.stdout or nowhere.open("w")
    sys.stderr = sys.stderr or nowhere.open("w")
    try:
        app(prog_name="aenv")
    except CommandError as failure:
        report(failure)
        code = failure.exit_code
    except KeyboardInterrupt:
        code = 130
    except OSError as error:  # of this machine, such as a full disk under our output
        report(CommandError(str(error)))
        sys.stdout = nowhere.open("w")  # what is left would fail once more at the exit
        code = 1
    else:
        code = 0
    raise SystemExit(code)
