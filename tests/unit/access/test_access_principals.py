"""Instances and pods as principals, against a stand-in for OCI's authentication."""

import base64
import json
import re
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from identities_for_tests import TENANCY
from llmd_oke.access import principals
from llmd_oke.access.signing import Signer
from llmd_oke.errors import KitError


def public(signer: Signer) -> str:
    pem = signer.private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return "".join(pem.splitlines()[1:-1])


class Authentication:
    """Metadata service, authentication service and the pods' proxy; remembers what it was asked."""

    def __init__(self, certificate: str, key: str, status: int = 200) -> None:
        self.identity = {"cert.pem": certificate, "key.pem": key, "intermediate.pem": certificate}
        self.status = status
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[-1]
        if request.method == "GET":
            assert request.headers["authorization"] == "Bearer Oracle"
            return httpx.Response(200, text=self.identity[name])
        self.asked.append(request)
        if self.status != 200:
            return httpx.Response(self.status)
        if name == "x509":
            return httpx.Response(200, json={"token": "for-the-instance"})
        return httpx.Response(200, content=base64.b64encode(json.dumps({"token": "ST$for-the-pod"}).encode()))


@pytest.fixture
def authentication(certificate_pem: str, key_pem: str) -> Authentication:
    return Authentication(certificate_pem, key_pem)


def test_an_instance_exchanges_its_certificate_for_a_token(authentication: Authentication, key: RSAPrivateKey):
    signer = principals.instance_principal("us-ashburn-1", client=authentication.client())
    (asked,) = authentication.asked
    assert str(asked.url) == "https://auth.us-ashburn-1.oraclecloud.com/v1/x509"
    sent = json.loads(asked.content)
    assert sent["publicKey"] == public(signer)
    assert "BEGIN" not in sent["certificate"]
    assert len(sent["intermediateCertificates"]) == 1
    assert signer.key_id == "ST$for-the-instance"


def test_the_exchange_is_signed_by_the_instances_own_key(authentication: Authentication, key: RSAPrivateKey):
    principals.instance_principal("us-ashburn-1", client=authentication.client())
    (asked,) = authentication.asked
    parts = dict(re.findall(r'(\w+)="([^"]*)"', asked.headers["authorization"]))
    assert re.fullmatch(rf"{TENANCY}/fed-x509/([0-9A-F]{{2}}:){{19}}[0-9A-F]{{2}}", parts["keyId"])
    values = {**asked.headers, "(request-target)": "post /v1/x509"}
    text = "\n".join(f"{name}: {values[name]}" for name in parts["headers"].split())
    signature = base64.b64decode(parts["signature"])
    key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())


def test_a_machine_elsewhere_is_no_instance():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    with pytest.raises(KitError, match="metadata service"):
        principals.instance_principal("us-ashburn-1", client=httpx.Client(transport=httpx.MockTransport(refuse)))


def test_a_refused_exchange_is_told_with_its_status(certificate_pem: str, key_pem: str):
    refusing = Authentication(certificate_pem, key_pem, status=401)
    with pytest.raises(KitError, match="refuses with 401"):
        principals.instance_principal("us-ashburn-1", client=refusing.client())


def test_a_pod_exchanges_its_service_accounts_token(authentication: Authentication, tmp_path: Path):
    (tmp_path / "token").write_text("of-the-account\n")
    url = "https://10.96.0.1:12250/resourcePrincipalSessionTokens"
    signer = principals.workload_identity(account=tmp_path, url=url, client=authentication.client())
    (asked,) = authentication.asked
    assert asked.headers["authorization"] == "Bearer of-the-account"
    assert json.loads(asked.content) == {"podKey": public(signer)}
    assert signer.key_id == "ST$for-the-pod"


def test_outside_a_pod_there_is_no_workload_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KitError, match="no pod"):
        principals.workload_identity(account=tmp_path)
    with pytest.raises(KitError, match="no service account token"):
        principals.workload_identity(account=tmp_path, url="https://10.96.0.1:12250/x")
