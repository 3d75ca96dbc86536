import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from llmd_base.errors import KitError
from llmd_oke.access import signing
from llmd_oke.access.signing import Signer, exec_credential
from llmd_oke.cli.main import app
from typer.testing import CliRunner

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
URL = "https://iaas.us-ashburn-1.oraclecloud.com/20160918/instances?limit=1&compartmentId=c"


def verify(public_key: RSAPublicKey, authorization: str, values: dict[str, str]) -> dict[str, str]:
    """Return the parts of a signature.

    Raises:
        InvalidSignature: it isn't that of these values.
    """
    parts = dict(re.findall(r'(\w+)="([^"]*)"', authorization))
    text = "\n".join(f"{name}: {values[name]}" for name in parts["headers"].split())
    signature = base64.b64decode(parts["signature"])
    public_key.verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return parts


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


def test_the_signature_of_a_post_request_to_oci_covers_its_body(key: RSAPrivateKey):
    body = b'{"a": 1}'
    headers = Signer("t/u/f", key).headers("POST", URL, now=NOW, body=body)
    assert headers["x-content-sha256"] == base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert headers["content-length"] == "8"
    target = "post /20160918/instances?limit=1&compartmentId=c"
    values = {**headers, "(request-target)": target, "host": "iaas.us-ashburn-1.oraclecloud.com"}
    verify(key.public_key(), headers["authorization"], values)


def test_a_signers_text_form_reveals_no_secret(key: RSAPrivateKey):
    assert repr(Signer("ST$token", key)) == "Signer(…)"


def test_the_key_id_is_read_from_an_oci_profile_or_is_the_token_of_its_session(
    oci_config: Path, key: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
):
    """Variables of OCI's CLI name the file and the profile of a session."""
    signer = signing.api_key_signer(oci_config, "DEFAULT")
    assert signer.key_id == "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/aa:bb"
    assert signer.private_key.private_numbers() == key.private_numbers()
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(oci_config))
    monkeypatch.setenv("OCI_CLI_PROFILE", "SESSION")
    assert signing.api_key_signer().key_id == "ST$session-token"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("user=ocid1.user.oc1..u", "", "There is no user in profile DEFAULT"),
        ("fingerprint=aa:bb", "fingerprint=", "There is no fingerprint in profile DEFAULT"),
        ("key.pem", "other.pem", "can't be read"),
        ("[DEFAULT]", "DEFAULT]", "can't be read as OCI's configuration file"),
    ],
)
def test_an_invalid_oci_profile_is_reported(oci_config: Path, old: str, new: str, message: str):
    oci_config.write_text(oci_config.read_text().replace(old, new))
    with pytest.raises(KitError, match=message):
        signing.api_key_signer(oci_config, "DEFAULT")


def test_a_missing_oci_config_file_or_profile_is_reported(oci_config: Path, tmp_path: Path):
    with pytest.raises(KitError, match="There is no OCI configuration file"):
        signing.api_key_signer(tmp_path / "none")
    with pytest.raises(KitError, match="has no profile OTHER"):
        signing.api_key_signer(oci_config, "OTHER")


def test_a_private_key_is_decrypted_and_an_invalid_one_is_not_shown(key: RSAPrivateKey, key_pem: str):
    passphrase = BestAvailableEncryption(b"open sesame")
    locked_key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, passphrase).decode()
    opened = signing.load_key(locked_key_pem, "open sesame", "the profile")
    assert opened.private_numbers() == key.private_numbers()
    with pytest.raises(KitError, match="needs a pass phrase"):
        signing.load_key(locked_key_pem, None, "the profile")
    with pytest.raises(KitError, match="pass phrase is wrong"):
        signing.load_key(locked_key_pem, "open", "the profile")
    with pytest.raises(KitError) as refused:
        signing.load_key(key_pem.replace("MII", "XXX"), None, "the profile")
    assert key_pem[40:80] not in str(refused.value)


CLUSTER = "ocid1.cluster.oc1.iad.c"


def checked(token: str, key: RSAPrivateKey) -> dict[str, str]:
    """The query of the token's URL, its signature checked as the API server's proxy has OKE check it."""
    url = urlsplit(base64.urlsafe_b64decode(token).decode())
    assert (url.scheme, url.netloc) == ("https", "containerengine.us-ashburn-1.oraclecloud.com")
    assert url.path == f"/cluster_request/{CLUSTER}"
    query = {name: values[0] for name, values in parse_qs(url.query, strict_parsing=True).items()}
    values = {"date": query["date"], "(request-target)": f"get {url.path}", "host": url.netloc}
    return {**query, **verify(key.public_key(), query["authorization"], values)}


def test_the_cluster_token_is_an_exec_credential_with_a_request_that_is_signed(key: RSAPrivateKey):
    credential = exec_credential(Signer("t/u/f", key), CLUSTER, "us-ashburn-1", NOW)
    request = checked(credential["status"]["token"], key)
    assert (request["keyId"], request["date"]) == ("t/u/f", "Sat, 21 Nov 2026 08:00:00 GMT")
    assert (credential["apiVersion"], credential["kind"]) == ("client.authentication.k8s.io/v1beta1", "ExecCredential")
    assert credential["status"]["expirationTimestamp"] == "2026-11-21T08:04:00Z"


def test_the_token_command_prints_only_the_token(oci_config: Path, key: RSAPrivateKey, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(oci_config))
    ended = CliRunner().invoke(app, ["token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1"])
    assert ended.exit_code == 0
    credential = json.loads(ended.stdout)
    assert checked(credential["status"]["token"], key)["keyId"] == "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/aa:bb"


def test_an_unknown_oci_authentication_method_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OCI_CLI_AUTH", "magic")
    ended = CliRunner().invoke(app, ["token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1"])
    assert "OCI_CLI_AUTH=magic" in str(ended.exception)
