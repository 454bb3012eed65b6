"""What the machine's own apt is set to: its Debian archives, and how it reaches them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from aenv.errors import HostNotReady
from aenv.images.commands import run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""Debian's keys, at the same path on the host and in the guest (package debian-archive-keyring)."""

_TARGET_FORMAT = "$(ORIGIN)|$(CODENAME)|$(RELEASE)|$(REPO_URI)|$(COMPONENT)"
_REMOTE = ("http", "https", "ftp")
_OPTIONS = re.compile(
    r"^Acquire::(?:https?::.+|Retries|ForceIPv4|ForceIPv6|Check-Valid-Until|Check-Date) \"[^\"]+\";$"
)
_DATE_OPTIONS = ("Acquire::Check-Valid-Until ", "Acquire::Check-Date ")


@dataclass(frozen=True)
class Source:
    """One archive in the words of sources.list(5)."""

    uri: str
    suite: str
    components: tuple[str, ...]

    def line(self, *, private: bool) -> str:
        """The one-line form; without `private`, user name and password in the URI are left out."""
        uri = self.uri if private else _without_credentials(self.uri)
        return f"deb [signed-by={KEYRING}] {uri} {self.suite} {' '.join(self.components)}"


@dataclass(frozen=True)
class AptSettings:
    """The archives of one Debian release and the options that make them reachable."""

    sources: tuple[Source, ...]
    """Empty if the machine has none of that release: then the public mirrors are the ones to use."""
    options: tuple[str, ...]
    """Lines of apt.conf(5): proxies, TLS, retries, checks of dates. They may hold credentials."""

    @property
    def date_options(self) -> tuple[str, ...]:
        """Those that the guest needs too, since it uses the same archives: checks that are switched off."""
        return tuple(line for line in self.options if line.startswith(_DATE_OPTIONS))


async def host_settings(release: str) -> AptSettings:
    """Read the machine's apt settings for the Debian release `release`, a codename such as `bookworm`.

    apt itself says what its index files come from, so both forms of source files count, and archives that
    aren't Debian's don't.
    """
    try:
        targets = await run(["apt-get", "indextargets", "--format", _TARGET_FORMAT, "Created-By: Packages"])
        options = await run(["apt-config", "dump"])
    except HostNotReady:
        return AptSettings((), ())
    return AptSettings(parse_targets(targets, release), parse_options(options))


def parse_targets(text: str, release: str) -> tuple[Source, ...]:
    """The Debian archives of `release`, with its updates and security suites, in lines of index targets."""
    suites = {release, f"{release}-updates", f"{release}-security"}
    found: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        origin, codename, suite, uri, component = line.split("|")
        address = _resolved(uri)
        if origin == "Debian" and codename in suites and urlsplit(address).scheme in _REMOTE:
            components = found.setdefault((address, suite), [])
            if component not in components:
                components.append(component)
    sources = tuple(Source(uri, suite, tuple(components)) for (uri, suite), components in found.items())
    return sources if any(source.suite.partition("-")[1] == "" for source in sources) else ()


def parse_options(text: str) -> tuple[str, ...]:
    """The lines of `apt-config dump` that say how archives are reached and checked."""
    return tuple(line for line in text.splitlines() if _OPTIONS.match(line))


def _resolved(uri: str) -> str:
    """The first mirror of a `mirror+file:` list, as cloud images use them; any other URI as it is."""
    if not uri.startswith("mirror+file:"):
        return uri
    try:
        lines = Path(uri.removeprefix("mirror+file:").rstrip("/")).read_text().splitlines()
    except OSError:
        return uri
    return next((line.split()[0] for line in lines if line.strip() and not line.startswith("#")), uri)


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
