"""A certificate authority of one's own, for domains that no public one vouches for.

It lives in one folder: the authority's key and certificate, the certificates that it issued, and a bundle
with the system's authorities for programs that know only one file of them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aenv.durable import write_whole
from aenv.errors import HostNotReady

AUTHORITY_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=397)
"""The longest that browsers take."""

RENEW_BEFORE = timedelta(days=30)
"""What ends sooner is made anew."""

_CLOCK_SKEW = timedelta(days=1)

_SYSTEM_AUTHORITIES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Arch
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Fedora, RHEL
    Path("/etc/ssl/cert.pem"),  # Alpine
)


@dataclass(frozen=True)
class Authority:
    """Files of the authority in a folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """What clients must trust."""
        return self.folder / "ca.pem"

    @property
    def key(self) -> Path:
        """The secret with which any domain can be vouched for; for its owner only."""
        return self.folder / "ca-key.pem"

    @property
    def bundle(self) -> Path:
        """The certificate after the system's own authorities."""
        return self.folder / "ca-bundle.pem"

    def leaf(self, domain: str) -> Path:
        """Key and certificate of a domain (without port), in one file."""
        return self.folder / f"{domain}.pem"


@dataclass(frozen=True)
class _Signer:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def ensure(folder: Path, domain: str | None) -> Authority:
    """Make the authority and, with a domain, a certificate for it and `*.<domain>`; renew what ends soon.

    An authority that is renewed keeps its key, so what it issued stays valid. Blocking; safe when several
    processes do it at once. Raises HostNotReady if the folder or a file in it can't be used.
    """
    files = Authority(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            signer = _authority(files)
            _bundle(files)
            if domain is not None and not _is_fresh(files.leaf(domain), domain, signer):
                write_whole(files.leaf(domain), _issue(domain, signer), mode=0o600)
    except OSError as error:
        raise HostNotReady(f"the certificates in {folder} can't be used: {error}") from error
    return files


def expiry(certificate: Path) -> datetime:
    """When a certificate ends. Raises OSError or ValueError."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _authority(files: Authority) -> _Signer:
    """The authority as it is on disk, made or renewed as needed."""
    if files.key.exists():
        key = _read_key(files.key)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_whole(files.key, _pem(key), mode=0o600)
    certificate = _read_certificate(files.certificate)
    if (
        certificate is None
        or certificate.public_key() != key.public_key()
        or certificate.not_valid_after_utc - _now() < RENEW_BEFORE
    ):
        certificate = _self_signed(key)
        write_whole(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return _Signer(key, certificate)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise HostNotReady(f"{path} is no private key: {error}; remove it to begin anew") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise HostNotReady(f"{path} is not a key of the kind that this server makes; remove it to begin anew")
    return key


def _read_certificate(path: Path) -> x509.Certificate | None:
    """The certificate, None if there is none that can be read: it can be made anew."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _bundle(files: Authority) -> None:
    system = next((path for path in _SYSTEM_AUTHORITIES if path.exists()), None)
    content = (b"" if system is None else system.read_bytes() + b"\n") + files.certificate.read_bytes()
    if not files.bundle.exists() or files.bundle.read_bytes() != content:
        write_whole(files.bundle, content, mode=0o644)


def _is_fresh(path: Path, domain: str, signer: _Signer) -> bool:
    """Whether the file holds a key with a certificate for the domain that will be good for a while."""
    certificate = _read_certificate(path)
    if certificate is None or certificate.not_valid_after_utc - _now() < RENEW_BEFORE:
        return False
    try:
        certificate.verify_directly_issued_by(signer.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    covered = set(names.get_values_for_type(x509.DNSName))
    return {domain, f"*.{domain}"} <= covered and key.public_key() == certificate.public_key()


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # The name has the key's own digits in it: two authorities of one name confuse clients that trust both.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"AgentENV local authority {identifier.digest.hex()[:8]}")
    usage = _usage(digital_signature=False, key_cert_sign=True)
    return (
        _builder(name, name, key, _now() + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _issue(domain: str, signer: _Signer) -> bytes:
    """A new key and its certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(_now() + LEAF_LIFE, signer.certificate.not_valid_after_utc)
    identifier = signer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(_name("AgentENV"), signer.certificate.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(domain), x509.DNSName(f"*.{domain}")]), critical=False
        )
        .add_extension(_usage(digital_signature=True, key_cert_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
        .sign(signer.key, hashes.SHA256())
    )
    return _pem(key) + certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCK_SKEW)
        .not_valid_after(end)
    )


def _usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _now() -> datetime:
    return datetime.now(UTC)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
