"""What the `base` root file system has beyond Debian's packages: settings, and shells that start quickly.

Under emulation each process costs 20 ms and more, and E2B clients run every command in a login shell. So no
profile here starts a process: `id`, `dircolors`, `mesg` and the like, which Debian's do, are gone.
"""

from __future__ import annotations

import os
from pathlib import Path

HOSTNAME = "sandbox"
"""Until envd sets the sandbox's own."""

_PROFILE = """\
# System-wide settings of login shells. Keep it free of processes: each is slow in an emulated guest.
PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
case ":$PATH:" in
  *":$HOME/.local/bin:"*) ;;
  *) PATH="${HOME:+$HOME/.local/bin:}$PATH" ;;
esac
LANG="${LANG:-C.UTF-8}"
export PATH LANG

if [ -n "${PS1-}" ] && [ -n "${BASH-}" ] && [ -r /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
for script in /etc/profile.d/*.sh; do
  [ -r "$script" ] && . "$script"
done
unset script
"""

_USER_PROFILE = """\
# Settings of login shells of this user.
[ -n "$BASH_VERSION" ] && [ -r "$HOME/.bashrc" ] && . "$HOME/.bashrc"
"""

_USER_BASHRC = """\
# Settings of interactive shells of this user.
case $- in
  *i*) ;;
  *) return ;;
esac
HISTCONTROL=ignoreboth
HISTSIZE=10000
HISTFILESIZE=20000
shopt -s histappend checkwinsize
PS1='\\[\\e[32m\\]\\u@\\h\\[\\e[0m\\]:\\[\\e[34m\\]\\w\\[\\e[0m\\]\\$ '
alias ls='ls --color=auto' grep='grep --color=auto' ll='ls -l'
"""

_HOSTS = f"""\
127.0.0.1 localhost
127.0.1.1 {HOSTNAME}
::1 localhost ip6-localhost ip6-loopback
"""

_PIP = """\
# The whole machine is a sandbox of one user: there is nothing for the distribution's guard to protect.
[global]
break-system-packages = true
disable-pip-version-check = true
root-user-action = ignore
"""

FILES: dict[str, tuple[int, str]] = {
    "etc/hostname": (0o644, HOSTNAME + "\n"),
    "etc/hosts": (0o644, _HOSTS),
    "etc/resolv.conf": (0o644, ""),  # envd writes it; the host's own must not get into images
    "etc/machine-id": (0o444, ""),
    "etc/profile": (0o644, _PROFILE),
    "etc/skel/.profile": (0o644, _USER_PROFILE),
    "etc/skel/.bashrc": (0o644, _USER_BASHRC),
    "etc/pip.conf": (0o644, _PIP),
    "etc/sudoers.d/user": (0o440, "user ALL=(ALL:ALL) NOPASSWD:ALL\n"),
    "etc/apt/apt.conf.d/90sandbox": (0o644, 'APT::Install-Recommends "false";\nAcquire::Languages "none";\n'),
}
"""Path → mode and content."""

_HOMES = {"root": (0, 0), "home/user": (1000, 1000)}
_DOTFILES = ("etc/skel/.profile", "etc/skel/.bashrc")
_REMOVED_FILES = (
    "etc/apt/apt.conf.d/99mmdebstrap",  # may hold the machine's proxy with its password
    "home/user/.bash_logout",
    "var/cache/ldconfig/aux-cache",
)
_FOLDERS_WITHOUT_FILES = ("var/log", "var/cache/apt", "var/lib/apt/lists", "tmp", "run")
_BACKUPS = ("etc/*-", "var/cache/debconf/*-old", "var/lib/dpkg/*-old")

RECIPE = (FILES, _HOMES, _REMOVED_FILES, _FOLDERS_WITHOUT_FILES, _BACKUPS)
"""Everything that decides what `furnish` does, for those who name images by how they are made."""


def furnish(tree: Path, *, sources: str, apt_options: str) -> None:
    """Turn the freshly bootstrapped `tree` into the base: write our files; remove caches, logs, backups.

    `sources` replaces the guest's sources.list unless it is empty; `apt_options` are lines of apt.conf(5).
    Must run as root. A file that exists is unlinked before it is written, so no link leads out of `tree`.
    """
    for name, (mode, content) in FILES.items():
        _write(tree / name, content, mode)
    for home, owner in _HOMES.items():
        for name in _DOTFILES:
            path = tree / home / Path(name).name
            _write(path, FILES[name][1], FILES[name][0])
            os.chown(path, *owner)
    for name in _REMOVED_FILES:
        (tree / name).unlink(missing_ok=True)
    for name in _FOLDERS_WITHOUT_FILES:
        _remove_files(tree / name)
    for pattern in _BACKUPS:
        for path in tree.glob(pattern):
            path.unlink()
    if sources:
        _remove_files(tree / "etc/apt/sources.list.d")
        _write(tree / "etc/apt/sources.list", sources, 0o644)
    if apt_options:
        _write(tree / "etc/apt/apt.conf.d/91archive", apt_options, 0o644)


def _write(path: Path, content: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    path.write_text(content)
    path.chmod(mode)


def _remove_files(folder: Path) -> None:
    """Remove every file below `folder`; the folders stay, since apt for one fails without its own."""
    for parent, _, names in os.walk(folder):
        for name in names:
            Path(parent, name).unlink()
