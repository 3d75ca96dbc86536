"""Instances and pods as principals: a session key of their own, signed for by what they run on.

An instance shows the certificate that its metadata service gives it to OCI's authentication service; a pod shows its
service account's token to the proxy beside the API server. Both get a token for a key that never leaves this process.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmd_oke.access.api_key import load_key
from llmd_oke.access.signing import Signer
from llmd_oke.errors import KitError

METADATA_URL = "http://169.254.169.254/opc/v2"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WORKLOAD_PORT = 12250
TIMEOUT_S = 30.0
KEY_BITS = 2048


def instance_principal(
    region: str,
    *,
    metadata_url: str = METADATA_URL,
    federation_url: str | None = None,
    client: httpx.Client | None = None,
) -> Signer:
    """The signer of the instance that this runs on.

    Raises:
        KitError: this is no OCI instance, or OCI does not accept it.
    """
    client = client or httpx.Client(timeout=TIMEOUT_S)
    certificate, key, intermediate = (
        _text(client, f"{metadata_url}/identity/{name}.pem") for name in ("cert", "key", "intermediate")
    )
    leaf = x509.load_pem_x509_certificate(certificate.encode())
    fingerprint = hashlib.sha1(leaf.public_bytes(Encoding.DER)).hexdigest()  # noqa: S324 - OCI's name for it, no secret
    pairs = ":".join(fingerprint[i : i + 2] for i in range(0, len(fingerprint), 2)).upper()
    own = Signer(f"{_tenancy(leaf)}/fed-x509/{pairs}", load_key(key, None, "this instance"))
    session = _session_key()
    request = {
        "certificate": _bare(certificate),
        "publicKey": _public(session),
        "intermediateCertificates": [_bare(intermediate)],
    }
    url = federation_url or f"https://auth.{region}.oraclecloud.com/v1/x509"
    body = json.dumps(request).encode()
    signed = own.headers("POST", url, body=body, generic=("date", "(request-target)"))
    return _with_token(_post(client, url, body, signed), session)


def workload_identity(
    *, account: Path = SERVICE_ACCOUNT, url: str | None = None, client: httpx.Client | None = None
) -> Signer:
    """The signer of the pod that this runs in.

    Raises:
        KitError: this is no pod of an enhanced OKE cluster, or OCI does not accept it.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if url is None and not host:
        raise KitError("This is no pod: KUBERNETES_SERVICE_HOST is not set.", "Choose another --auth.")
    try:
        token = (account / "token").read_text().strip()
    except OSError as error:
        raise KitError(f"The pod has no service account token in {account}.") from error
    client = client or httpx.Client(timeout=TIMEOUT_S, verify=_authority(account / "ca.crt"))
    session = _session_key()
    url = url or f"https://{host}:{WORKLOAD_PORT}/resourcePrincipalSessionTokens"
    body = json.dumps({"podKey": _public(session)}).encode()
    sent = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return _with_token(base64.b64decode(_post(client, url, body, sent)), session)


def _authority(file: Path) -> Any:
    import ssl  # noqa: PLC0415 - slow to load, and only pods need it

    return ssl.create_default_context(cafile=str(file))


def _session_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)


def _text(client: httpx.Client, url: str) -> str:
    try:
        answer = client.get(url, headers={"Authorization": "Bearer Oracle"})
        return answer.raise_for_status().text
    except httpx.HTTPError as error:
        raise KitError(
            f"The metadata service of an OCI instance does not answer at {url}.", "Choose another --auth."
        ) from error


def _post(client: httpx.Client, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    try:
        answer = client.post(url, content=body, headers=dict(headers))
    except httpx.HTTPError as error:
        raise KitError(f"OCI's authentication does not answer at {url}: {type(error).__name__}.") from error
    if answer.is_error:
        remedy = "Workload identity needs an enhanced cluster; instances need a dynamic group and a policy."
        raise KitError(f"OCI's authentication at {url} refuses with {answer.status_code}.", remedy)
    return answer.content


def _with_token(answer: bytes, session: rsa.RSAPrivateKey) -> Signer:
    try:
        token = str(json.loads(answer)["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise KitError("OCI's authentication answered without a token.") from error
    return Signer(f"ST${token.removeprefix('ST$')}", session)


def _tenancy(certificate: x509.Certificate) -> str:
    """The tenancy that an instance's certificate names: `opc-tenant:<OCID>` or `opc-identity:<OCID>`."""
    for attribute in certificate.subject:
        kind, _, value = str(attribute.value).partition(":")
        if kind in {"opc-tenant", "opc-identity"}:
            return value
    raise KitError("The instance's certificate names no tenancy.")


def _public(key: rsa.RSAPrivateKey) -> str:
    return _bare(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def _bare(pem: str) -> str:
    """A PEM text without its first and last lines, in one line."""
    return "".join(line for line in pem.splitlines() if not line.startswith("-----"))
