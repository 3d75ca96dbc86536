"""The token that a kubeconfig asks for."""

import base64
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from llmd_oke.access.cluster_token import exec_credential
from llmd_oke.access.signing import Signer
from llmd_oke.cli.main import app
from typer.testing import CliRunner

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
CLUSTER = "ocid1.cluster.oc1.iad.c"


def checked(token: str, key: RSAPrivateKey) -> dict[str, str]:
    """The query of the token's URL, its signature checked as the API server's proxy has OKE check it."""
    url = urlsplit(base64.urlsafe_b64decode(token).decode())
    assert (url.scheme, url.netloc) == ("https", "containerengine.us-ashburn-1.oraclecloud.com")
    assert url.path == f"/cluster_request/{CLUSTER}"
    query = {name: values[0] for name, values in parse_qs(url.query, strict_parsing=True).items()}
    parts = dict(re.findall(r'(\w+)="([^"]*)"', query["authorization"]))
    values = {"date": query["date"], "(request-target)": f"get {url.path}", "host": url.netloc}
    text = "\n".join(f"{name}: {values[name]}" for name in parts["headers"].split())
    signature = base64.b64decode(parts["signature"])
    key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return {**query, **parts}


def test_the_token_is_a_signed_request_for_that_cluster(key: RSAPrivateKey):
    made = exec_credential(Signer("t/u/f", key), CLUSTER, "us-ashburn-1", NOW)
    found = checked(made["status"]["token"], key)
    assert found["keyId"] == "t/u/f"
    assert found["date"] == "Sat, 21 Nov 2026 08:00:00 GMT"


def test_the_token_is_told_as_a_credential_program_does(key: RSAPrivateKey):
    made = exec_credential(Signer("t/u/f", key), CLUSTER, "us-ashburn-1", NOW)
    assert (made["apiVersion"], made["kind"]) == ("client.authentication.k8s.io/v1beta1", "ExecCredential")
    assert made["status"]["expirationTimestamp"] == "2026-11-21T08:04:00Z"


def test_the_command_prints_the_token_and_nothing_else(
    oci_config: Path, key: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(oci_config))
    ended = CliRunner().invoke(app, ["token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1"])
    assert ended.exit_code == 0
    made = json.loads(ended.stdout)
    assert checked(made["status"]["token"], key)["keyId"] == "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/aa:bb"


def test_an_unknown_way_to_sign_in_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OCI_CLI_AUTH", "magic")
    ended = CliRunner().invoke(app, ["token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1"])
    assert "OCI_CLI_AUTH=magic" in str(ended.exception)
