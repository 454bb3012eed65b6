"""`python -m aenv.cli`, for where the command isn't installed."""

from aenv.cli import main

main()
