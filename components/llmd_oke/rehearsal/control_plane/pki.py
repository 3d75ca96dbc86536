"""Keys and certificates of a world's control plane: one authority, elliptic curves, made in milliseconds.

What is there already is used again, so that a world that is restarted on its old data keeps its service account tokens.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmd_oke.rehearsal.control_plane import addresses

_VALIDITY = timedelta(days=3650)
_MARGIN = timedelta(days=1)
_ADMINISTRATORS = "system:masters"

API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{addresses.CLUSTER_DOMAIN}",
)
API_SERVER_ADDRESSES = ("127.0.0.1", addresses.NODE_ADDRESS, addresses.KUBERNETES_SERVICE)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Pki:
    """The files in one folder."""

    folder: Path

    def pair(self, name: str) -> KeyPair:
        """The certificate and key of that name."""
        return KeyPair(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def authority(self) -> KeyPair:
        """What signs the others."""
        return self.pair("ca")

    @property
    def api_server(self) -> KeyPair:
        """What the API server shows."""
        return self.pair("kube-apiserver")

    @property
    def admin(self) -> KeyPair:
        """May do everything."""
        return self.pair("admin")

    @property
    def controller_manager(self) -> KeyPair:
        """May do everything too, so that its controllers start without a service account each."""
        return self.pair("kube-controller-manager")

    @property
    def scheduler(self) -> KeyPair:
        """May do what the scheduler's built-in role allows."""
        return self.pair("kube-scheduler")

    @property
    def outside(self) -> KeyPair:
        """What stand-ins for hosts outside the cluster show."""
        return self.pair("outside")

    @property
    def service_accounts(self) -> KeyPair:
        """Signs service account tokens; `certificate` is the bare public key."""
        return KeyPair(self.folder / "service-accounts.pub", self.folder / "service-accounts.key")


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def prepare(folder: Path, outside_names: Sequence[str] = ("outside.invalid",)) -> Pki:
    """The files of a control plane, made where there are none or where they end within a day.

    `outside_names` are the hosts outside the cluster that a world answers for.
    """
    pki = Pki(folder)
    if not _usable(pki):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        _make(pki, outside_names)
    return pki


def _usable(pki: Pki) -> bool:
    servers = (pki.api_server, pki.outside)
    pairs = (pki.authority, *servers, pki.admin, pki.controller_manager, pki.scheduler, pki.service_accounts)
    if not all(path.is_file() for pair in pairs for path in (pair.certificate, pair.key)):
        return False
    certificate = x509.load_pem_x509_certificate(pki.authority.certificate.read_bytes())
    return certificate.not_valid_after_utc > datetime.now(UTC) + _MARGIN


def _make(pki: Pki, outside_names: Sequence[str]) -> None:
    authority = _make_authority(pki.authority)
    _sign_client(authority, pki.admin, "kubernetes-admin", [_ADMINISTRATORS])
    _sign_client(authority, pki.controller_manager, "system:kube-controller-manager", [_ADMINISTRATORS])
    _sign_client(authority, pki.scheduler, "system:kube-scheduler", [])
    _sign_server(authority, pki.api_server, "kube-apiserver", API_SERVER_NAMES, API_SERVER_ADDRESSES)
    _sign_server(authority, pki.outside, "outside", outside_names, ())
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write_key(pki.service_accounts.key, key)
    pki.service_accounts.certificate.write_bytes(public)


def _make_authority(pair: KeyPair) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rehearsal", [])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, key, issuer=name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write(pair, certificate, key)
    return _Authority(certificate, key)


def _sign_client(authority: _Authority, pair: KeyPair, user: str, groups: Sequence[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(user, groups), key, authority.certificate.subject).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
    )
    _write(pair, builder.sign(authority.key, hashes.SHA256()), key)


def _sign_server(
    authority: _Authority, pair: KeyPair, name: str, names: Sequence[str], server_addresses: Sequence[str]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(alternative) for alternative in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in server_addresses]
    builder = (
        _builder(_name(name, []), key, authority.certificate.subject)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    _write(pair, builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write(pair: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(pair.key, key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(text)
