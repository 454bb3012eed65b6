"""The same as `aenv bench lifecycle`, with the same options."""

import sys

from aenv.cli import main

sys.argv[1:1] = ["bench", "lifecycle"]
main()
