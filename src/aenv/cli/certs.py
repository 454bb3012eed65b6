"""The command `aenv certs`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from aenv.cli.errors import failure_of
from aenv.cli.options import Format, Globals, OutputOption, chosen_format
from aenv.cli.output import print_json, print_line
from aenv.cli.server import settings_failure
from aenv.errors import AenvError
from aenv.settings import Settings


def certs(
    ctx: typer.Context,
    domain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The server's domain, perhaps with a port [AENV_DOMAIN]."),
    ] = None,
    home: Annotated[Path | None, typer.Option(metavar="DIR", help="The server's folder [AENV_HOME].")] = None,
    output: OutputOption = None,
) -> None:
    """Make or renew the certificates of this machine's server, and print what its clients must set.

    `aenv server --domain NAME` makes them too. Clients on another machine need copies of the two files
    in the lines that this prints.

    \b
    aenv certs --domain sb.test:8443
    eval "$(aenv certs --domain sb.test:8443)"
    """
    given: Globals = ctx.obj
    options: dict[str, Any] = {"domain": domain or given.flags.domain, "home": home}
    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        raise settings_failure(error) from error
    try:
        shown = _make(settings)
    except AenvError as error:
        raise failure_of(error) from error
    if chosen_format(ctx, output) is Format.JSON:
        print_json(shown)
        return
    print_line(f"# certificate authority: {shown['authority']}, until {shown['authorityExpiresAt'][:10]}")
    if "certificate" in shown:
        print_line(f"# certificate: {shown['certificate']}, until {shown['certificateExpiresAt'][:10]}")
    for name, value in shown["environment"].items():
        print_line(f"export {name}={shlex.quote(value)}")


def _make(settings: Settings) -> dict[str, Any]:
    # Late, as it takes a moment to load.
    from aenv.tls import authority  # noqa: PLC0415

    domain = None if settings.domain is None else settings.domain.partition(":")[0]
    files = authority.ensure(settings.tls_dir.absolute(), domain)
    shown: dict[str, Any] = {
        "authority": str(files.certificate),
        "authorityExpiresAt": authority.expiry(files.certificate).isoformat(),
    }
    environment = {"SSL_CERT_FILE": str(files.bundle), "NODE_EXTRA_CA_CERTS": str(files.certificate)}
    if domain is not None and settings.public_domain is not None:
        shown["certificate"] = str(files.leaf(domain))
        shown["certificateExpiresAt"] = authority.expiry(files.leaf(domain)).isoformat()
        environment["E2B_DOMAIN"] = settings.public_domain
    return shown | {"environment": environment}
