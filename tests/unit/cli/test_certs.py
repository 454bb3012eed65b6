"""`aenv certs`: files and the lines that make clients trust them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def aenv(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "aenv.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_lines_can_be_evaluated(tmp_path: Path) -> None:
    home = str(tmp_path / "a home")
    printed = aenv("certs", "--home", home, "--domain", "sb.test:8443", "-o", "table")
    assert printed.returncode == 0, printed.stderr
    script = printed.stdout + 'cat "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS" && echo "$E2B_DOMAIN"'
    shown = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True).stdout
    assert shown.count("BEGIN CERTIFICATE") >= 2
    assert shown.endswith("\nsb.test:8443\n")


def test_json_and_the_environment(tmp_path: Path) -> None:
    printed = aenv("certs", "-o", "json", AENV_HOME=str(tmp_path), AENV_DOMAIN="sb.test")
    shown = json.loads(printed.stdout)
    assert shown["certificate"] == str(tmp_path / "tls" / "sb.test.pem")
    assert shown["environment"]["E2B_DOMAIN"] == "sb.test:8443"


def test_without_a_domain_there_is_an_authority_only(tmp_path: Path) -> None:
    shown = json.loads(aenv("certs", "-o", "json", AENV_HOME=str(tmp_path)).stdout)
    assert "certificate" not in shown
    assert set(shown["environment"]) == {"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"}


def test_a_bad_domain_is_wrong_usage(tmp_path: Path) -> None:
    refused = aenv("certs", "--home", str(tmp_path), "--domain", "localhost")
    assert refused.returncode == 2
    assert "--domain (AENV_DOMAIN)" in refused.stderr
    assert not (tmp_path / "tls").exists()
