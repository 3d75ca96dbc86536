"""Instances and pods sign in by OCI's SDK, at a metadata service, an authentication service and a pods' proxy here."""

import base64
import json
import re
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from certificates_for_tests import certificate, private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_base.errors import KitError
from llmd_oke.access import principals
from llmd_oke.access.sign_in import Auth
from llmd_oke.cli.token import signer_of
from oci.auth.session_key_supplier import SessionKeySupplier
from oci.auth.signers import resource_principals_signer
from stack_files import TENANCY
from test_access_signing import URL, verify

HOST = "iaas.us-ashburn-1.oraclecloud.com"


class Authentication:
    """Metadata service, authentication service and the pods' proxy; remembers what it was asked for tokens."""

    def __init__(self) -> None:
        self.url = ""
        self.identity: dict[str, str] = {}
        self.status = 200
        self.lifetime_s = 1200
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.tokens: list[str] = []

    def public_key(self) -> RSAPublicKey:
        """The key that the latest token is valid for."""
        sent = self.requests[-1].get("publicKey") or self.requests[-1]["podKey"]
        key = load_der_public_key(base64.b64decode(sent))
        assert isinstance(key, RSAPublicKey)
        return key

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path = request.url.path
        if request.method == "GET":
            assert request.headers["authorization"] == "Bearer Oracle"
            return HttpAnswer(200, self.identity[path.rpartition("/")[2]].encode())
        self.requests.append(json.loads(request.body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status != 200:
            return HttpAnswer(self.status, {"code": "NotAuthenticated", "message": "no"})
        now = int(time.time())
        claims = {"iat": now, "exp": now + self.lifetime_s, "n": len(self.tokens)}
        self.tokens.append(jwt.encode(claims, "k" * 32))
        pod = path.endswith("resourcePrincipalSessionTokens")
        answer = json.dumps({"token": f"ST${self.tokens[-1]}" if pod else self.tokens[-1]}).encode()
        return HttpAnswer(200, base64.b64encode(answer) if pod else answer)


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sessions' keys shorter than OCI's SDK does, which takes less time."""
    monkeypatch.setattr(SessionKeySupplier.__init__, "__defaults__", (1024,))


@pytest.fixture
def instance(certificate_pem: str, key_pem: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Authentication]:
    service = Authentication()
    pem = {"cert.pem": certificate_pem, "key.pem": key_pem, "intermediate.pem": certificate_pem}
    service.identity = {**pem, "region": "iad"}
    with http_server(service.answer) as server:
        service.url = address_of(server)
        monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{service.url}/opc/v2")
        yield service


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Authentication]:
    key = private_key()
    (tmp_path / "key.pem").write_text(key.pem)
    (tmp_path / "ca.crt").write_text(certificate(key, "localhost").chain)
    (tmp_path / "token").write_text(jwt.encode({"exp": int(time.time()) + 600}, "k" * 32))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key.pem")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH", str(tmp_path / "ca.crt"))
    service = Authentication()
    with http_server(service.answer, context) as server:
        monkeypatch.setattr(resource_principals_signer, "OCI_KUBERNETES_PROXYMUX_SERVICE_PORT", server.server_port)
        yield service


def key_id(key: RSAPublicKey, headers: dict[str, str], target: str, host: str = "") -> str:
    """The `keyId` of a signature over these headers."""
    return verify(key, headers["authorization"], {**headers, "(request-target)": target, "host": host})["keyId"]


def test_an_instance_gets_a_token_which_it_signs_with_and_never_shows(instance: Authentication, key: RSAPrivateKey):
    signer = principals.instance_principal(f"{instance.url}/v1/x509")
    sent = instance.requests[0]
    assert "BEGIN" not in sent["certificate"]
    assert len(sent["intermediateCertificates"]) == 1
    own = key_id(key.public_key(), instance.headers[0], "post /v1/x509")
    assert re.fullmatch(rf"{TENANCY}/fed-x509/([0-9A-F]{{2}}:){{19}}[0-9A-F]{{2}}", own)
    target = "/20160918/instances?limit=1&compartmentId=c"
    read, change = signer.headers("GET", URL), signer.headers("POST", URL, body=b'{"a": 1}')
    session = instance.public_key()
    assert key_id(session, read, f"get {target}", HOST) == f"ST${instance.tokens[0]}"
    assert key_id(session, change, f"post {target}", HOST) == f"ST${instance.tokens[0]}"
    assert (change["content-length"], "host" in change, len(instance.tokens)) == ("8", False, 1)
    assert instance.tokens[0] not in repr(signer)


def test_a_pod_exchanges_its_service_account_token_for_an_oci_token(pod: Authentication, tmp_path: Path):
    signer = principals.workload_identity(tmp_path / "token")
    assert pod.headers[0]["authorization"] == f"Bearer {(tmp_path / 'token').read_text()}"
    signed = signer.headers("GET", "https://h.example/a")
    assert key_id(pod.public_key(), signed, "get /a", "h.example") == f"ST${pod.tokens[0]}"


def test_tokens_of_instance_principal_and_workload_identity_are_renewed(
    instance: Authentication, pod: Authentication, tmp_path: Path
):
    instance.lifetime_s = pod.lifetime_s = -1
    of_instance = principals.instance_principal(f"{instance.url}/v1/x509")
    of_pod = principals.workload_identity(tmp_path / "token")
    for signer, server in ((of_instance, instance), (of_pod, pod)):
        first = server.tokens[-1]
        signed = signer.headers("GET", "https://h.example/a")
        assert key_id(server.public_key(), signed, "get /a", "h.example") == f"ST${server.tokens[-1]}"
        assert server.tokens[-1] != first


def test_a_principal_outside_of_oci_or_of_a_pod_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(principals, "METADATA_ATTEMPTS", 1)
    monkeypatch.setenv("OCI_METADATA_BASE_URL", "http://127.0.0.1:9/opc/v2")
    with pytest.raises(KitError, match="OCI gives this machine no token of an instance: ConnectionError"):
        signer_of(Auth.INSTANCE_PRINCIPAL, None)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KitError, match="no pod"):
        signer_of(Auth.WORKLOAD_IDENTITY, None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    with pytest.raises(KitError, match="no token of a pod"):
        principals.workload_identity(tmp_path / "none")


def test_a_refused_instance_or_workload_is_told_the_status_and_the_needed_policy(
    instance: Authentication, pod: Authentication, tmp_path: Path
):
    instance.status, pod.status = 401, 403
    with pytest.raises(KitError, match="401 NotAuthenticated") as refused:
        principals.instance_principal(f"{instance.url}/v1/x509")
    assert "dynamic group" in (refused.value.remedy or "")
    with pytest.raises(KitError, match="OCI gives this machine no token of a pod: 403") as refused:
        principals.workload_identity(tmp_path / "token")
    assert "enhanced OKE cluster" in (refused.value.remedy or "")


def test_without_ocis_sdk_the_error_names_the_optional_extra_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "oci.auth", None)
    monkeypatch.delitem(sys.modules, "llmd_oke.access.principals")
    monkeypatch.delattr("llmd_oke.access.principals")
    with pytest.raises(KitError, match="instance or a workload of OCI needs oci") as caught:
        signer_of(Auth.INSTANCE_PRINCIPAL, None)
    assert caught.value.remedy == "Install llmd-oke[oci]."
