"""Edits for tests. They are called with the disk for their root."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from aenv.disks.edits import EditRefused

Say = Callable[[str], None]


def write(path: str, text: str, say: Say) -> None:
    """Write a file and tell it."""
    Path(path).write_text(text)
    say(f"wrote {path}")


def show(path: str, say: Say) -> None:
    """Tell what is in a file, or that it isn't there."""
    say(Path(path).read_text() if Path(path).exists() else "missing")


def copy(path: str, file: BinaryIO, say: Say) -> None:
    """Write what is in a file of the host."""
    say("copying")
    Path(path).write_bytes(file.read())


def look(say: Say) -> None:
    """Tell how large the disk is, in MiB, and what is in its root."""
    found = os.statvfs("/")
    say(f"{found.f_blocks * found.f_frsize >> 20}")
    say(" ".join(sorted(os.listdir("/"))))  # noqa: PTH208 - names


def refuse(say: Say) -> None:
    """Don't like it."""
    say("looking")
    raise EditRefused("no, thank you")


def break_down(say: Say) -> None:
    """Fail as nobody foresaw."""
    say("looking")
    raise ZeroDivisionError("a bug")


def die(say: Say) -> None:
    """End without a word."""
    say("dying")
    os._exit(7)


def fill(mib: int, say: Say) -> None:
    """Write that much."""
    say("filling")
    with Path("/filler").open("wb") as file:
        file.writelines(os.urandom(1 << 20) for _ in range(mib))


def write_all_at_once(files: int, kib: int, say: Say) -> None:
    """Files of known content, written and forced to the disk side by side."""

    def put(number: int) -> None:
        with Path(f"/file{number}").open("wb") as file:
            for _ in range(4):
                file.write(pattern(number, kib << 8))
                file.flush()
                os.fsync(file.fileno())

    with ThreadPoolExecutor(files) as pool:
        list(pool.map(put, range(files)))
    say("written")


def check_all(files: int, kib: int, say: Say) -> None:
    """Tell whether these files are as they were written."""
    for number in range(files):
        if Path(f"/file{number}").read_bytes() != pattern(number, kib << 8) * 4:
            say(f"file{number} is damaged")
    say("checked")


def pattern(number: int, size: int) -> bytes:
    """As many bytes, in which no two blocks are equal."""
    return b"".join(b"%07d/%07d\n" % (number, block) for block in range(size // 16))


def hang(say: Say) -> None:
    """Never end."""
    say("hanging")
    time.sleep(3600)


def hang_shortly(say: Say) -> None:
    """Give somebody time to do something."""
    say("hanging")
    time.sleep(0.5)
