"""What the kernel allows this process."""

from __future__ import annotations

import resource


def raise_file_limit() -> None:
    """Allow as many open files as the system's administrator does; child processes inherit it.

    The usual soft limit of 1,024 is for programs that use select(2). Each stream through the proxy takes two.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
