"""Which server and which key are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.cli.config import (
    Connection,
    Credentials,
    Flags,
    credentials_path,
    load_credentials,
    resolve,
    store_credentials,
)
from aenv.cli.errors import CommandError

STORED = Credentials("http://stored:1/", "stored-key")
ENVIRON = {"E2B_API_URL": "http://env:2/", "E2B_API_KEY": "env-key", "E2B_SANDBOX_URL": "http://data:3/"}
NOWHERE = {"AENV_HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("flags", "environ", "stored", "expected"),
    [
        (
            Flags("http://flag:4", "flag-key", "http://flag:5"),
            ENVIRON,
            STORED,
            ("http://flag:4", "flag-key", "http://flag:5"),
        ),
        (Flags(), ENVIRON, STORED, ("http://env:2", "env-key", "http://data:3")),
        (Flags(), {}, STORED, ("http://stored:1", "stored-key", None)),
        (Flags(), NOWHERE, None, ("http://127.0.0.1:8000", None, None)),
        (Flags(), {"E2B_API_URL": "", "E2B_API_KEY": ""}, STORED, ("http://stored:1", "stored-key", None)),
        (Flags(api_url="http://other"), NOWHERE, STORED, ("http://other", None, None)),
        (Flags(), {"E2B_DOMAIN": "sb.test:18443"}, STORED, ("https://api.sb.test:18443", None, None)),
    ],
)
def test_flags_then_environment_then_stored(
    flags: Flags,
    environ: dict[str, str],
    stored: Credentials | None,
    expected: tuple[str, str | None, str | None],
) -> None:
    found = resolve(flags, environ, stored)
    assert (found.api_url, found.api_key, found.sandbox_url) == expected


def test_sandboxes_are_reached_through_the_server_unless_said_otherwise() -> None:
    assert Connection("http://api", None).data_url("i1") == "http://api"
    assert Connection("http://api", None, "http://data").data_url("i1") == "http://data"
    assert Connection("https://api.sb", None, None, "sb:1").data_url("i1") == "https://49983-i1.sb:1"


def test_the_hosts_own_key_is_for_this_host_only(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "api-key").write_text("own-key\n")
    environ = {"AENV_HOME": str(tmp_path)}
    assert resolve(Flags(), environ, None).api_key == "own-key"
    assert resolve(Flags(api_url="http://localhost:9"), environ, None).api_key == "own-key"
    assert resolve(Flags(api_url="http://elsewhere:8000"), environ, None).api_key is None


def test_credentials_are_kept_private_and_come_back(tmp_path: Path) -> None:
    path = credentials_path({"XDG_CONFIG_HOME": str(tmp_path)})
    assert load_credentials(path) is None
    for key in ("first", 'odd "key" \\ ü'):
        store_credentials(path, Credentials("http://a", key))
        assert load_credentials(path) == Credentials("http://a", key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["credentials"]


@pytest.mark.parametrize("text", ["not toml", 'url = "http://a"', ""])
def test_broken_credentials_are_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "credentials").write_text(text)
    with pytest.raises(CommandError, match="credentials"):
        load_credentials(tmp_path / "credentials")
