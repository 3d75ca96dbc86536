"""Signatures are checked with the public key, as OCI does."""

import base64
import hashlib
import re
from datetime import UTC, datetime

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from llmd_oke.access.signing import Signer, http_date

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
URL = "https://iaas.us-ashburn-1.oraclecloud.com/20160918/instances?limit=1&compartmentId=c"


def verify(public_key: RSAPublicKey, authorization: str, values: dict[str, str]) -> None:
    """Raises InvalidSignature where the signature isn't that of these values."""
    parts = dict(re.findall(r'(\w+)="([^"]*)"', authorization))
    text = "\n".join(f"{name}: {values[name]}" for name in parts["headers"].split())
    signature = base64.b64decode(parts["signature"])
    public_key.verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())


def test_a_request_without_body_is_signed_over_date_target_and_host(key: RSAPrivateKey):
    headers = Signer("t/u/f", key).headers("GET", URL, now=NOW)
    assert headers["authorization"].startswith('Signature algorithm="rsa-sha256",headers="date (request-target) host"')
    assert 'keyId="t/u/f"' in headers["authorization"]
    assert headers["authorization"].endswith('version="1"')
    target = "get /20160918/instances?limit=1&compartmentId=c"
    values = {"date": headers["date"], "(request-target)": target, "host": "iaas.us-ashburn-1.oraclecloud.com"}
    verify(key.public_key(), headers["authorization"], values)
    with pytest.raises(InvalidSignature):
        verify(key.public_key(), headers["authorization"], {**values, "(request-target)": "get /other"})


def test_a_body_is_part_of_the_signature(key: RSAPrivateKey):
    body = b'{"a": 1}'
    headers = Signer("t/u/f", key).headers("POST", URL, now=NOW, body=body)
    assert headers["x-content-sha256"] == base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert headers["content-length"] == "8"
    target = "post /20160918/instances?limit=1&compartmentId=c"
    values = {**headers, "(request-target)": target, "host": "iaas.us-ashburn-1.oraclecloud.com"}
    verify(key.public_key(), headers["authorization"], values)


def test_dates_are_those_of_http():
    assert http_date(NOW) == "Sat, 21 Nov 2026 08:00:00 GMT"


def test_a_signer_shows_nothing_of_its_secrets(key: RSAPrivateKey):
    assert repr(Signer("ST$token", key)) == "Signer(…)"
