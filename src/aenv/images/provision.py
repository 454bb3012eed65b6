"""What a sandbox needs beside the files of its image: mount points, a name, and an account `user`.

It runs none of the image's programs, so that it works on images that have none. Like `unpack`, it works on
`/`, which its caller has made the root of the file system to be changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from aenv.disks.edits import EditRefused
from aenv.images import basetree

USER: Final = "user"
"""Who runs commands in a sandbox when nobody else is named."""

VERSION: Final = "1"
"""Belongs to the keys of disks that were provisioned: to be changed with what is done here."""

_FIRST_ID: Final = 1000
_LAST_ID: Final = 59999
_FOLDERS: Final = {"dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "tmp": 0o1777, "root": 0o700}
_FILES: Final = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
_SHELLS: Final = ("/bin/bash", "/bin/sh")
_SUDOERS: Final = "etc/sudoers.d/user"
_MOST: Final = 16 << 20
"""Bytes of a file of accounts that are read; one with thousands of users has a few hundred KiB."""


def provision(say: Callable[[str], None], root: Path = Path("/")) -> None:
    """Add what is missing to the file system at `root`, and leave what is there.

    Raises EditRefused if something stands where a folder or a file must be, OSError if the disk fails.
    """
    say("folders, accounts and names")
    os.umask(0)
    with contextlib.suppress(OSError):
        (root / "lost+found").rmdir()  # mke2fs makes it; no image has it
    for name, mode in {**_FOLDERS, "etc": 0o755}.items():
        _folder(root / name, mode)
    for name in _FILES:
        mode, content = basetree.FILES[name]
        if _read(root / name).strip() == "":
            _write(root / name, content, mode)
    _Accounts(root).add_user()


def _folder(path: Path, mode: int) -> None:
    """A folder, or a link to one."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(mode)
    if not path.is_dir():
        if not path.is_symlink():
            raise EditRefused(f"{path} is no folder in this image")
        path.unlink()  # it leads to nothing
        path.mkdir()
        path.chmod(mode)


def _read(path: Path) -> str:
    """What is in a text file, nothing if there is none. Raises EditRefused for what is no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise EditRefused(f"{path} is no file in this image")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        content = file.read(_MOST)
        if file.read(1):
            raise EditRefused(f"{path} has more than {_MOST >> 20} MiB in this image")
    return content


def _write(path: Path, content: str, mode: int) -> None:
    """A new file in the place of a file, or of a link to one; with its owner and mode, if there was one."""
    owner = (0, 0)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = path.stat()
        owner, mode = (found.st_uid, found.st_gid), stat.S_IMODE(found.st_mode)
    path.unlink(missing_ok=True)
    path.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")
    os.chown(path, *owner)
    path.chmod(mode)


class _Table:
    """A file of accounts: lines of fields with colons between them."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path = path
        self._mode = mode
        self.exists = path.exists()
        self._lines = _read(path).splitlines()

    def fields(self) -> Iterable[list[str]]:
        """Each line's."""
        return (line.split(":") for line in self._lines)

    def names(self) -> set[str]:
        """Those of all accounts, or groups."""
        return {fields[0] for fields in self.fields()}

    def ids(self) -> set[int]:
        """Their numbers."""
        return {int(fields[2]) for fields in self.fields() if len(fields) > 2 and fields[2].isdigit()}

    def add(self, *lines: str, first: bool = False) -> None:
        """Put lines at the end, or the beginning, and write the file."""
        self._lines = [*lines, *self._lines] if first else [*self._lines, *lines]
        _write(self._path, "".join(f"{line}\n" for line in self._lines), self._mode)


class _Accounts:
    """The accounts of a file system: `user` is added to them with a home folder, unless there is one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._users = _Table(root / "etc/passwd", 0o644)
        self._groups = _Table(root / "etc/group", 0o644)
        self._secrets = [_Table(root / "etc/shadow", 0o640), _Table(root / "etc/gshadow", 0o640)]

    def add_user(self) -> None:
        """With the id 1000 or the next that no user and no group has. Root is added as well."""
        shell = next((each for each in _SHELLS if self._is_there(each)), _SHELLS[-1])
        if "root" not in self._users.names():
            self._users.add(f"root:x:0:0:root:/root:{shell}", first=True)
        if "root" not in self._groups.names() and 0 not in self._groups.ids():
            self._groups.add("root:x:0:", first=True)
        if USER in self._users.names():
            return
        taken = self._users.ids() | self._groups.ids()
        number = next((each for each in range(_FIRST_ID, _LAST_ID) if each not in taken), None)
        if number is None:
            raise EditRefused("no id is left for a user of its own in this image's /etc/passwd")
        self._users.add(f"{USER}:x:{number}:{number}::/home/{USER}:{shell}")
        if USER not in self._groups.names():
            self._groups.add(f"{USER}:x:{number}:")
        for table, line in zip(self._secrets, (f"{USER}:!:19000:0:99999:7:::", f"{USER}:!::"), strict=True):
            if table.exists and USER not in table.names():
                table.add(line)
        self._make_home(number)
        self._allow_sudo()

    def _is_there(self, program: str) -> bool:
        """Whether there is something of this name; a link may lead elsewhere when `root` isn't the root."""
        return os.path.lexists(self._root / program[1:])

    def _make_home(self, number: int) -> None:
        home = self._root / "home" / USER
        _folder(home.parent, 0o755)
        if os.path.lexists(home):
            return
        home.mkdir(mode=0o755)
        skeleton = self._root / "etc/skel"
        if skeleton.is_dir():
            for path in skeleton.iterdir():
                if path.is_file() and not path.is_symlink():
                    shutil.copy(path, home / path.name)
                    os.chown(home / path.name, number, number)
        os.chown(home, number, number)

    def _allow_sudo(self) -> None:
        """Where the image has sudo, `user` may do everything with it, as in the base template."""
        target = self._root / _SUDOERS
        if self._is_there("/usr/bin/sudo") and target.parent.is_dir() and not os.path.lexists(target):
            mode, content = basetree.FILES[_SUDOERS]
            _write(target, content, mode)
