from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from stack_files import TENANCY


@pytest.fixture(scope="session")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def key_pem(key: rsa.RSAPrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


@pytest.fixture(scope="session")
def certificate_pem(key: rsa.RSAPrivateKey) -> str:
    """The certificate of an instance."""
    names = (
        (NameOID.COMMON_NAME, "ocid1.instance.oc1.iad.i"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, f"opc-tenant:{TENANCY}"),
    )
    name = x509.Name([x509.NameAttribute(*item) for item in names])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def oci_config(tmp_path: Path, key_pem: str) -> Path:
    """A configuration file with two profiles."""
    (tmp_path / "key.pem").write_text(key_pem)
    (tmp_path / "session").write_text("session-token\n")
    file = tmp_path / "config"
    file.write_text(
        f"""
[DEFAULT]
tenancy=ocid1.tenancy.oc1..t
user=ocid1.user.oc1..u
fingerprint=aa:bb
key_file={tmp_path}/key.pem
region=us-ashburn-1

[SESSION]
security_token_file={tmp_path}/session
"""
    )
    return file
