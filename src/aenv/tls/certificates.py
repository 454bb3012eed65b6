"""What the server shows clients that come over TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from aenv.errors import HostNotReady
from aenv.settings import Settings
from aenv.tls import authority

log = structlog.get_logger()

CHECK_SECONDS = 3600.0
"""Time between looks for a renewed certificate file, or one that has to be renewed."""


class Certificates:
    """The certificate in use: the user's, or the local authority's. Follows the changes of its file."""

    def __init__(self, settings: Settings, domain: str) -> None:
        self._settings = settings
        self._domain = domain.partition(":")[0]
        self._loaded: list[int] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])

    def renew(self) -> None:
        """Renew what is ours to renew. Blocking. Raises HostNotReady."""
        if self._settings.tls_cert is None:
            authority.ensure(self._settings.tls_dir, self._domain)

    def load(self) -> None:
        """Use the certificate as it is on disk, for connections from now on. Raises HostNotReady.

        Reads two small files. For the thread that makes connections: OpenSSL takes no changes meanwhile.
        """
        certificate, key = self._files()
        try:
            state = [path.stat().st_mtime_ns for path in (certificate, key or certificate)]
            if state != self._loaded:
                # An encrypted key would make OpenSSL ask on the terminal.
                self.context.load_cert_chain(certificate, key, password=lambda: "")
                self._loaded = state
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = f"{certificate} and its key can't be used: {error}"
            raise HostNotReady(f"{reason}; see AENV_TLS_CERT and AENV_TLS_KEY") from error

    def _files(self) -> tuple[Path, Path | None]:
        settings = self._settings
        if settings.tls_cert is None:
            return authority.Authority(settings.tls_dir).leaf(self._domain), None
        return settings.tls_cert, settings.tls_key

    async def follow(self) -> None:
        """Renew and reload until cancelled. What goes wrong is logged; the old certificate stays in use."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await asyncio.to_thread(self.renew)
                self.load()
            except HostNotReady as error:
                log.error("the TLS certificate can't be renewed", error=error.message)


async def open_certificates(settings: Settings, domain: str) -> Certificates:
    """The certificates for a domain (a port behind it is ignored), ready for use. Raises HostNotReady."""
    certificates = Certificates(settings, domain)
    await asyncio.to_thread(certificates.renew)
    certificates.load()
    return certificates
