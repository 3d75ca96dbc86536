"""Keys and certificates that tests make themselves."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class PrivateKey:
    """A private key, and its PEM."""

    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@dataclass(frozen=True)
class Certificate:
    """A certificate that its own key signed."""

    certificate: x509.Certificate

    @property
    def chain(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()


def private_key() -> PrivateKey:
    return PrivateKey(ec.generate_private_key(ec.SECP256R1()))


def certificate(key: PrivateKey, host: str, end: datetime | None = None) -> Certificate:
    """A certificate for a host, valid for a year until `end`; a year from now if left out."""
    end = end or datetime.now(UTC) + timedelta(days=365)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    builder = x509.CertificateBuilder(name, name, key.key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(end - timedelta(days=366)).not_valid_after(end)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.key.public_key())  # tells authorities of one name apart
    builder = builder.add_extension(identifier, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = builder.add_extension(issuer, critical=False)
    return Certificate(builder.sign(key.key, hashes.SHA256()))
