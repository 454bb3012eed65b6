"""Names of images: `debian`, `quay.io/org/app:1.2`, `localhost:5000/app@sha256:…`.

The grammar is that of the distribution project: https://github.com/distribution/reference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from aenv.errors import InvalidRequest

DOCKER_HUB: Final = "docker.io"
_HUB_NAMES: Final = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_HOST: Final = "registry-1.docker.io"
_DEFAULT_TAG: Final = "latest"
_LONGEST_NAME: Final = 255

_HOST: Final = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*"
    r"|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
)
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
"""The digests that the OCI image specification registers."""
_BARE_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """One image on one registry. It has a tag or a digest or both, and then the digest decides."""

    registry: str
    """`host` or `host:port`, as people name it."""
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def host(self) -> str:
        """`host` or `host:port` that serves it."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest if there is one, else the tag."""
        return self.digest or self.tag or _DEFAULT_TAG

    def pinned(self, digest: str) -> Reference:
        """The same with this digest."""
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def parse(text: str, registries: Sequence[str] = (DOCKER_HUB,)) -> tuple[Reference, ...]:
    """The images that `text` may mean, in the order in which to look for them.

    A name without a host is looked for in each of `registries`; these are hosts, perhaps with a path behind
    them. On Docker Hub a name without a slash is in `library/`.

    Raises InvalidRequest if it can't be the name of an image.
    """
    if not text or text != text.strip() or not text.isprintable():
        raise _wrong(text, "it is empty or has blanks or control characters in it")
    if "://" in text:
        raise _wrong(text, "leave out what is before the host, such as https://")
    name, at, digest = text.partition("@")
    if at and DIGEST.fullmatch(digest) is None:
        raise _wrong(text, "a digest is sha256: and 64 lower-case hexadecimal digits")
    name, colon, tag = _split_tag(name)
    if colon and _TAG.fullmatch(tag) is None:
        raise _wrong(text, "a tag has 1 to 128 letters, digits, `_`, `.` and `-`, the first no `.` or `-`")
    if not colon:
        tag = "" if digest else _DEFAULT_TAG
    host, path = _split_host(name)
    if host:
        return (_reference(text, host, path, tag, digest),)
    if not registries:
        raise _wrong(text, "it has no host, and no registry is set for such names (AENV_IMAGE_REGISTRIES)")
    if _BARE_DIGEST.fullmatch(path):
        raise _wrong(text, "64 hexadecimal digits name a local image elsewhere, and none here")
    return tuple(_reference(text, *_within(registry, path), tag, digest) for registry in registries)


def checked_registry(given: str) -> str:
    """`given` if it can stand in the list of registries: a host, perhaps with a path. Raises ValueError."""
    host, slash, path = given.partition("/")
    if not _is_host(host) or (slash and _PATH.fullmatch(path) is None):
        raise ValueError(f"{given!r} is not a registry such as docker.io or localhost:5000")
    return given


def is_loopback(host: str) -> bool:
    """Is `host` or `host:port` this machine, by its name alone?"""
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """`host:port` without the port, an IPv6 address without its brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _wrong(text: str, why: str) -> InvalidRequest:
    shown = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    return InvalidRequest(f"{shown!r} is not the name of an image: {why}")


def _split_tag(name: str) -> tuple[str, str, str]:
    """A colon behind the last slash begins a tag; one before it begins a port."""
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    return head + slash + last, colon, tag


def _split_host(name: str) -> tuple[str, str]:
    """The host, empty if there is none, and the rest."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or any(mark in first for mark in ".:[") or first != first.lower()):
        return first, rest
    return "", name


def _within(registry: str, path: str) -> tuple[str, str]:
    host, slash, prefix = registry.partition("/")
    return host, f"{prefix}{slash}{path}"


def _reference(text: str, host: str, path: str, tag: str, digest: str) -> Reference:
    if not _is_host(host):
        raise _wrong(text, f"{host!r} is not a host")
    if host.lower() in _HUB_NAMES:
        host = DOCKER_HUB
        path = path if "/" in path else f"library/{path}"
    if path != path.lower():
        raise _wrong(text, "its path must be in lower case")
    if _PATH.fullmatch(path) is None:
        raise _wrong(
            text, "its path has lower-case letters and digits, with single `.`, `_`, `-`, `/` between"
        )
    if len(host) + 1 + len(path) > _LONGEST_NAME:
        raise _wrong(text, f"it is longer than {_LONGEST_NAME} characters")
    return Reference(host, path, tag or None, digest or None)


def _is_host(host: str) -> bool:
    if _HOST.fullmatch(host) is None:
        return False
    name, _, port = host.rpartition(":")
    return not name or host.endswith("]") or 0 < int(port) < 65536
