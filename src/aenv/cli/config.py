"""Which server, with which key: flags, then the SDKs' environment variables, then stored credentials."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aenv.cli.errors import CommandError
from aenv.durable import write_whole
from aenv.guest import ENVD_PORT

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_HOME = "/var/lib/aenv"
_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Flags:
    """The connection options given on the command line."""

    api_url: str | None = None
    api_key: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None


@dataclass(frozen=True)
class Connection:
    """Where the server is and how to be let in."""

    api_url: str
    api_key: str | None
    sandbox_url: str | None = None
    domain: str | None = None

    def data_url(self, sandbox_id: str) -> str:
        """The base URL of a sandbox's envd; requests to it carry the routing headers as well."""
        if self.sandbox_url:
            return self.sandbox_url
        if self.domain:
            return f"https://{ENVD_PORT}-{sandbox_id}.{self.domain}"
        return self.api_url


@dataclass(frozen=True)
class Credentials:
    """What `aenv auth` stores."""

    url: str
    api_key: str


def credentials_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/aenv/credentials`, by default under `~/.config`."""
    config = environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "aenv" / "credentials"


def load_credentials(path: Path) -> Credentials | None:
    """The stored credentials, None if there are none. Raises CommandError for a file that can't be read."""
    try:
        fields = tomllib.loads(path.read_text())
        return Credentials(str(fields["url"]), str(fields["api_key"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(f"can't read {path}: {error}", hint="Write it again with `aenv auth`.") from error


def store_credentials(path: Path, credentials: Credentials) -> None:
    """Write the file in one step, readable only by its owner."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # JSON's strings are also TOML's.
    text = f"url = {json.dumps(credentials.url)}\napi_key = {json.dumps(credentials.api_key)}\n"
    write_whole(path, text.encode())


def resolve(flags: Flags, environ: Mapping[str, str], stored: Credentials | None) -> Connection:
    """The connection to use. An empty environment variable counts as unset, as in the SDKs.

    A stored key goes only to the server it was stored for, the host's own key only to this host.
    """
    domain = flags.domain or environ.get("E2B_DOMAIN") or None
    api_url = (
        flags.api_url
        or environ.get("E2B_API_URL")
        or (f"https://api.{domain}" if domain else None)
        or (stored.url if stored else None)
        or DEFAULT_URL
    ).rstrip("/")
    api_key = flags.api_key or environ.get("E2B_API_KEY") or None
    if api_key is None and stored is not None and stored.url.rstrip("/") == api_url:
        api_key = stored.api_key
    if api_key is None and urlsplit(api_url).hostname in _LOCAL_HOSTS:
        api_key = _key_of_this_host(environ)
    sandbox_url = flags.sandbox_url or environ.get("E2B_SANDBOX_URL") or None
    return Connection(api_url, api_key, sandbox_url.rstrip("/") if sandbox_url else None, domain)


def _key_of_this_host(environ: Mapping[str, str]) -> str | None:
    """The key file of a server on this host, if we may read it."""
    file = Path(environ.get("AENV_HOME") or DEFAULT_HOME) / "secrets" / "api-key"
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
