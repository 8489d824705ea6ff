"""Certificates for servers of the tests: an authority, and what it signs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self, password: str | None = None) -> bytes:
        """The key, then the certificate."""
        locked = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
        return key + self.certificate_pem()

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def write(self, path: Path, password: str | None = None) -> Path:
        path.write_bytes(self.pem(password))
        return path


def issue(
    name: str, *, by: Issued | None = None, authority: bool = False, days_ago: int = 0
) -> Issued:
    """A certificate for an address or a name, good for a day before and after then; signed by
    itself, or `by` an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    then = datetime.now(UTC) - timedelta(days=days_ago)
    issuer, signing = (by.certificate.subject, by.key) if by else (subject, key)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(then - timedelta(days=1))
        .not_valid_after(then + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
    )
    if not authority:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general(name)]), critical=False
        )
    return Issued(builder.sign(signing, hashes.SHA256()), key)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
